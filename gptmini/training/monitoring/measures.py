"""What Scalars measures of an optimizer step: the time of its parts, and the weights of each kind of layer."""

import time
from itertools import pairwise

import torch
from torch import Tensor

from gptmini.model import GPT
from gptmini.model.gpt import VOCABULARY

PARTS = ("data", "forward", "backward", "optimizer")  # of an optimizer step, in their order


class StepTimes:
    """Times the parts of one optimizer step, from instants that are marked at the end of each part.

    A CUDA GPU records the instants itself, as events in its queue of work, so that the host need not wait for it.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin the first part now."""
        self._device = device.type
        self._instants: list[tuple[str, float | torch.cuda.Event]] = []  # a part's name and its end
        self.mark("begin")

    def mark(self, part: str) -> None:
        """End a part here: one of PARTS, or another name for time that is not counted."""
        if self._device == "cuda":
            instant = torch.cuda.Event(enable_timing=True)
            instant.record()
        else:
            if self._device == "mps":
                # torch.mps.Event cannot time a part in which the device was given no work: the host waits instead.
                torch.mps.synchronize()
            instant = time.perf_counter()
        self._instants.append((part, instant))

    def milliseconds(self) -> dict[str, float]:
        """Time of each of PARTS, summed over the micro-steps; the device must have finished all marked work."""
        spent = dict.fromkeys(PARTS, 0.0)
        for (_, begin), (part, end) in pairwise(self._instants):
            if part not in spent:
                continue
            if self._device == "cuda":
                spent[part] += begin.elapsed_time(end)
            else:
                spent[part] += 1000 * (end - begin)
        return spent


def by_kind(model: GPT) -> dict[str, list[Tensor]]:
    """Group a model's weights by the kind of their layer, without the padding of the vocabulary.

    Returns: detached views of the weights by kind, for those kinds that the model has: embedding, attention, mlp,
    unembedding, norm, smear.
    """
    kinds: dict[str, list[Tensor]] = {}
    for name, weight in model.named_parameters():
        # "blocks.0.mlp_norm.weight" belongs to layer "mlp_norm", which is of kind "norm".
        layer = name.removeprefix("blocks.").lstrip("0123456789.").partition(".")[0]
        kind = layer.rpartition("_")[2]

        n_rows = model.config.vocab_size if name in VOCABULARY else len(weight)
        kinds.setdefault(kind, []).append(weight.detach()[:n_rows])
    return kinds
