"""What a device can be asked: its time, its memory, and how fast its maker says that it is."""

import ctypes
import os
import platform
import sys
import time

import torch

# Dense bf16 by NVIDIA's data sheets, under the names that the driver gives; Lightning's table mistakes L40S for L4.
PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA GeForce RTX 4090": 165e12,
}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def clock(device: str) -> float:
    """Seconds of a clock that runs on steadily, read once the device has done all that it was asked."""
    wait_for(torch.device(device))
    return time.perf_counter()


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was asked; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def keep_freed_memory() -> None:
    """Have glibc keep what a step frees for the next one, instead of asking the system for it anew; elsewhere nothing.

    Tensors above 32 MB, of which a large model's step has many at once, still go back.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)


def use_tf32() -> None:
    """Let products of float32 matrices round their factors to TF32, on GPUs that can; norms and sums stay float32."""
    torch.set_float32_matmul_precision("high")


def memory(device: torch.device) -> int | None:
    """Bytes that a device has in all: of a CUDA GPU its own, else the machine's; None where the system says nothing."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return None


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
