"""What a running step can be asked: how large its weights and changes are, what its parts take, how much memory."""

import sys
import time
from itertools import pairwise

import torch
from torch import Tensor

from gptmini.model import GPT
from gptmini.model.gpt import VOCABULARY

# Dense bf16 by NVIDIA's data sheets, under the names that the driver gives; Lightning's table mistakes L40S for L4.
PEAKS = {f"NVIDIA A100{kind}": 312e12 for kind in ("-SXM4-40GB", "-SXM4-80GB", "-PCIE-40GB", " 80GB PCIe")}
PEAKS |= {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H200": 989e12}
PEAKS |= {"NVIDIA L4": 121e12, "NVIDIA L40S": 362e12, "NVIDIA GeForce RTX 4090": 165e12}
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


def peak_memory(device: torch.device) -> int | None:
    """Most bytes so far: of tensors on a CUDA GPU, else of this process; None where the system keeps no count."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Operations a second of a GPU in bf16, by its maker; None for another precision or a GPU that is not in PEAKS."""
    return PEAKS.get(torch.cuda.get_device_name(device)) if device.type == "cuda" and "bf16" in precision else None
