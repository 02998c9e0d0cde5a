"""What a running step can be asked: how large its weights and changes are, what its parts take, how much memory."""

import sys
import time
import warnings
from itertools import pairwise

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from torch import Tensor

from gptmini.model import GPT

PARTS = ("data", "forward", "backward", "optimizer")  # of a step, in their order


class StepTimes:
    """The parts of one optimizer step, by instants that follow each other; on a GPU its own events, which it times."""

    def __init__(self, device: torch.device) -> None:
        self._event = {"cuda": torch.cuda.Event, "mps": torch.mps.event.Event}.get(device.type)
        self._instants: list[tuple[str, object]] = []
        self.mark("begin")

    def mark(self, part: str) -> None:
        """Say that part ends here: one of PARTS, or something that is not counted."""
        instant = time.perf_counter() if self._event is None else self._event(enable_timing=True)
        if self._event is not None:
            instant.record()
        self._instants.append((part, instant))

    def milliseconds(self) -> dict[str, float]:
        """What each of PARTS took, summed over micro-steps; waits for a GPU to end the step."""
        if self._event is not None:
            self._instants[-1][1].synchronize()
        spent = dict.fromkeys(PARTS, 0.0)
        for (_, begin), (part, end) in pairwise(self._instants):
            if part in spent:
                spent[part] += 1000 * (end - begin) if self._event is None else begin.elapsed_time(end)
        return spent


def by_kind(model: GPT) -> dict[str, list[Tensor]]:
    """Weights by kind of layer: embedding, attention, mlp and unembedding, norm and smear where they have weights."""
    kinds: dict[str, list[Tensor]] = {}
    for name, weight in model.named_parameters():
        layer = name.removeprefix("blocks.").lstrip("0123456789.").partition(".")[0]  # as in mlp_norm
        kinds.setdefault(layer.rpartition("_")[2], []).append(weight.detach())
    return kinds


def peak_memory(device: torch.device) -> int | None:
    """Most bytes so far: of tensors on a CUDA GPU, else of this process; None where the system keeps no count."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Operations a second that the maker of a GPU promises in fp32 or bf16, if Lightning knows it; else None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a GPU that is not in its table
        return get_available_flops(device, torch.bfloat16 if "bf16" in precision else torch.float32)
