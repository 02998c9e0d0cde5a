"""What a device can be asked: the time, its memory, and the speed that its maker states."""

import ctypes
import os
import platform
import sys
import time
from typing import Any

import torch

# Dense operations a second in bf16 by NVIDIA's data sheets, under the names that the driver gives.
# Lightning's table is not used because it mistakes L40S for L4.
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

# Environment variable from which a process that starts takes its number of CPU threads.
VARIABLE_OF_THREADS = "OMP_NUM_THREADS"

# What use_threads has changed: torch's number of threads, and the variable. Empty where nothing is changed.
_BEFORE: dict[str, Any] = {}

# Numbers of two parameters of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def clock(device: str) -> float:
    """Wait until the device has finished its queued work, and return the seconds of a steady clock."""
    wait_for(torch.device(device))
    return time.perf_counter()


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished its queued work; a CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def keep_freed_memory() -> None:
    """Have glibc keep the memory that one training step frees for the next step, instead of returning it to the system.

    Tensors above 32 MB still go back to the system when they are freed: a large model's step has many of them at
    once. With another C library nothing changes.
    """
    if platform.libc_ver()[0] != "glibc":
        return

    # Freed memory at the end of the heap stays there, and tensors of up to 32 MB are put into the heap.
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)  # bytes; the largest int
    libc.mallopt(M_MMAP_THRESHOLD, 2**25)  # bytes


def use_tf32() -> None:
    """Let GPUs that have TF32 round the factors of float32 matrix products to TF32; norms and sums stay float32."""
    torch.set_float32_matmul_precision("high")


def use_threads(threads: int | None, *, n_processes: int = 1) -> None:
    """Set the number of CPU threads that torch computes with in this process.

    Args:
        threads: the number; None for the number that torch had before this function changed it. Each of several
            processes then takes an equal share of that number.
        n_processes: number of processes that compute together, of which this is one.
    """
    _undo_use_threads()
    own = torch.get_num_threads()
    if n_processes == 1:
        if threads is not None:
            _BEFORE["threads"] = own
            torch.set_num_threads(threads)
        return

    # Lightning sets a number of its own in each of several processes, unless this variable is set. The processes that
    # Lightning starts inherit the variable, and with it the share that is computed here.
    if threads is None and VARIABLE_OF_THREADS in os.environ:
        return
    number = threads
    if number is None:
        number = max(1, own // n_processes)
    _BEFORE["threads"] = own
    _BEFORE["variable"] = os.environ.get(VARIABLE_OF_THREADS)
    torch.set_num_threads(number)
    os.environ[VARIABLE_OF_THREADS] = str(number)


def _undo_use_threads() -> None:
    """Give torch and the environment what they had before use_threads changed it."""
    if "threads" in _BEFORE:
        torch.set_num_threads(_BEFORE.pop("threads"))
    if "variable" in _BEFORE:
        variable = _BEFORE.pop("variable")
        if variable is None:
            del os.environ[VARIABLE_OF_THREADS]
        else:
            os.environ[VARIABLE_OF_THREADS] = variable


def memory(device: torch.device) -> int | None:
    """Total bytes of a CUDA GPU's memory, otherwise of the machine's; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return None


def peak_memory(device: torch.device) -> int | None:
    """Most bytes so far of tensors on a CUDA GPU, otherwise of this process; None where the system keeps no count."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None

    import resource  # does not exist on Windows

    bytes_per_unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * bytes_per_unit


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Operations a second of a GPU in bf16 as its maker states them; None for fp32 and for a device not in PEAKS."""
    if device.type != "cuda" or "bf16" not in precision:
        return None
    return PEAKS.get(torch.cuda.get_device_name(device))
