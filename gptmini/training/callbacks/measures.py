"""Measurements for the callback Scalars. They are the time of each part of a step, and the norms of the weights."""

import time
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from gptmini.model import GPT, VOCABULARY
from gptmini.training.devices import distributed

PARTS = ("data", "forward", "backward", "optimizer")  # parts of an optimizer step, in order


class StepTimes:
    """A stopwatch for the parts of one optimizer step. Each part ends with a mark.

    On a CUDA GPU, the marks are events in the stream of the GPU, so the host does not wait for the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        """Start the first part now."""
        self._device = device.type
        # The name and the end of each part, in order. The end is an event on a CUDA GPU. On other devices, it is a time
        # of the host's clock in milliseconds.
        self._marks: list[tuple[str, Any]] = []
        self.mark("begin")

    def mark(self, part: str) -> None:
        """End a part now. The time of the part counts only if the name of the part is in PARTS."""
        if self._device == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((part, event))
            return

        if self._device == "mps":
            # torch.mps.Event cannot time a part if the device has no work during the part. So make the host wait.
            torch.mps.synchronize()
        self._marks.append((part, 1000 * time.perf_counter()))

    def milliseconds(self) -> dict[str, float]:
        """Return the time of each part in milliseconds, summed over the micro-steps.

        The device must have finished all work before the last mark.
        """
        spent = dict.fromkeys(PARTS, 0.0)
        for (_, begin), (part, end) in pairwise(self._marks):
            if part in spent:
                spent[part] += begin.elapsed_time(end) if self._device == "cuda" else end - begin
        return spent


def weights_by_kind(model: GPT) -> dict[str, list[Tensor]]:
    """Group the weights of a model by the kind of layer. Leave out the padding of the vocabulary.

    Returns detached views by kind: embedding, attention, mlp, unembedding, norm and smear, if the model has them. Under
    FSDP2, the views are the shards of this device.
    """
    kinds: dict[str, list[Tensor]] = {}
    for name, weight in model.named_parameters():
        # For example, "blocks.0.mlp_norm.weight" belongs to the layer "mlp_norm". The kind of this layer is "norm".
        layer = name.removeprefix("blocks.").lstrip("0123456789.").partition(".")[0]
        kind = layer.rpartition("_")[2]

        n_rows = model.config.vocab_size if name in VOCABULARY else len(weight)
        kinds.setdefault(kind, []).append(distributed.first_rows(weight.detach(), n_rows))
    return kinds


def norms(tensors: dict[str, list[Tensor]], model: GPT) -> dict[str, float]:
    """Return the norm of each list of tensors, by name. For shards, it is the norm of the full tensors. Collective."""
    names = list(tensors)
    of_each = torch.stack([get_total_norm(tensors[name]) for name in names])  # (n,)
    of_whole = distributed.full_norms(model, of_each)  # (n,)
    return dict(zip(names, of_whole.tolist(), strict=True))
