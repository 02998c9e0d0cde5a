"""What a running step can be asked: how large its weights and changes are, what its parts take, how much memory."""

import time
from itertools import pairwise

import torch
from torch import Tensor

from gptmini.model import GPT
from gptmini.model.gpt import VOCABULARY

PARTS = ("data", "forward", "backward", "optimizer")  # of a step, in their order


class StepTimes:
    """The parts of one optimizer step, by instants that follow each other; a CUDA GPU times them by its own events."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._instants = device.type, []
        self.mark("begin")

    def mark(self, part: str) -> None:
        """Say that part ends here: one of PARTS, or something that is not counted."""
        if self._device == "mps":
            torch.mps.synchronize()  # its events cannot time what was nothing
        instant = torch.cuda.Event(enable_timing=True) if self._device == "cuda" else time.perf_counter()
        if self._device == "cuda":
            instant.record()
        self._instants.append((part, instant))

    def milliseconds(self) -> dict[str, float]:
        """What each of PARTS took, summed over micro-steps; the device has done all that was marked."""
        spent = dict.fromkeys(PARTS, 0.0)
        for (_, begin), (part, end) in pairwise(self._instants):
            if part in spent:
                spent[part] += begin.elapsed_time(end) if self._device == "cuda" else 1000 * (end - begin)
        return spent


def by_kind(model: GPT) -> dict[str, list[Tensor]]:
    """Weights by kind of layer, without padding: embedding, attention, mlp, unembedding, norm, smear; those it has."""
    kinds: dict[str, list[Tensor]] = {}
    for name, weight in model.named_parameters():
        layer = name.removeprefix("blocks.").lstrip("0123456789.").partition(".")[0]  # as in mlp_norm
        rows = model.config.vocab_size if name in VOCABULARY else len(weight)
        kinds.setdefault(layer.rpartition("_")[2], []).append(weight.detach()[:rows])
    return kinds
