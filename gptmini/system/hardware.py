"""Choose the device, the precision and the threads for this machine, and measure time, memory and speed."""

import ctypes
import gc
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from gptmini.system.errors import UserError

X86 = ("x86_64", "AMD64")  # names of x86-64 in Linux and in Windows
TF32_SINCE = (8, 0)  # compute capability of the first GPUs with TF32: Ampere
TRITON_SINCE = (7, 0)  # compute capability of the oldest GPUs that Triton supports: Volta
# The C++ compiler that torch.compile calls on a CPU, as in torch._inductor.config.cpp.cxx.
CPP_COMPILER = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
# The reason why device=auto chooses a device. The device 'mps' is the GPU of an Apple computer.
DEVICE_REASONS = {
    "cuda": "CUDA device found",
    "mps": "no CUDA device found",
    "cpu": "no CUDA or MPS device found",
}
# The dtypes of the weights for sampling, by name. In int8, only large matrices are int8, and the rest is bf16.
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp64": torch.float64,
}

# The smallest width of a model that trains in bf16 by default on a CPU with instructions for bf16. Reported for an
# AMD EPYC with avx512_bf16: a step in fp32 takes as long as in bf16 at width 128, but 1.6 times as long at width 384.
CPU_BF16_WIDTH = 384
# The smallest number of weights for sampling in bf16 by default on such a CPU. These weights do not fit into a cache in
# fp32, so the speed of memory limits sampling. In bf16, the weights take half of the memory.
CPU_BF16_WEIGHTS = 100_000_000

# Dense bf16 operations per second from NVIDIA's data sheets, by the device name that the driver reports. Lightning has
# a similar table, but Lightning's table confuses the L40S with the L4.
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

# Environment variable that sets the number of CPU threads of a new process.
THREADS_VARIABLE = "OMP_NUM_THREADS"

# Two parameters of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


@dataclass(frozen=True)
class Hardware:
    """A choice of device, precision and compilation."""

    device: str  # cpu, cuda or mps
    # 'fp32' uses float32 everywhere. 'bf16' uses float32 weights and torch's autocast.
    # 'bf16_stream' uses bfloat16 activations, and each layer casts its float32 weights to bfloat16.
    precision: str
    compile: bool  # whether to compile the loss
    devices: int  # number of GPUs, or of processes on the CPU
    reasons: Mapping[str, str]  # the reason for each automatic choice, by the name of the field

    @property
    def tf32(self) -> bool:
        """Whether float32 matrix products use TF32. TF32 is a format of NVIDIA that is faster but has fewer bits."""
        return self.device == "cuda" and torch.cuda.get_device_capability() >= TF32_SINCE

    @property
    def notes(self) -> list[str]:
        """Console lines about choices of the user that make a run slow."""
        is_x86 = self.device == "cpu" and platform.machine() in X86
        if not is_x86 or self.precision == "fp32" or _has_native_bf16("cpu"):
            return []
        return [
            f"trainer.precision={self.precision} is slow on this CPU, which has no instructions for bf16; "
            "use trainer.precision=auto"
        ]

    def __str__(self) -> str:
        """Return the choices as one short line for the console."""
        precision = self.precision
        if precision == "fp32" and self.tf32:
            precision += ", products in TF32"
        parts = [self.device, precision, "compiled" if self.compile else "eager"]
        if self.devices > 1:
            parts.append(f"{self.devices} processes")
        if self.device == "cpu":
            n_threads = torch.get_num_threads()
            threads = "1 thread" if n_threads == 1 else f"{n_threads} threads"
            parts.append(f"{threads} each" if self.devices > 1 else threads)
        return ", ".join(parts)


def choose_device(device: str) -> str:
    """Return the device, or the first of cuda, mps and cpu for 'auto'. Raise UserError if it is missing."""
    # Faster devices come first.
    present = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if device == "auto":
        return next(name for name in present if present[name])
    if not present.get(device, False):
        raise UserError(f"device={device} is not available on this machine; use auto")
    return device


def choose_hardware(
    device: str, precision: str, compile: bool | str, devices: int = 1, *, width: int = 0
) -> Hardware:
    """Replace each value 'auto' by the best choice for this machine.

    The precision 'auto' means bf16 on GPUs that support it, and for wide models on CPUs with instructions for it,
    otherwise fp32. Compiling 'auto' means True on GPUs that Triton supports. `devices` counts GPUs, or processes on the
    CPU. Raises UserError if this machine does not have the device, or has too few devices.
    """
    reasons = {}
    chosen = choose_device(device)
    if device == "auto":
        reasons["device"] = DEVICE_REASONS[chosen]

    # Any number of processes can share the CPU.
    present = {"cuda": torch.cuda.device_count(), "mps": 1}.get(chosen, devices)
    if devices > present:
        raise UserError(
            f"trainer.devices must be at most {present}, the number of {chosen} devices, "
            f"got {devices}"
        )

    if precision == "auto":
        precision, reasons["precision"] = _choose_precision(chosen, width)

    if compile == "auto":
        compile = chosen == "cuda" and _has_triton()
        only_if = "compiling is faster only on GPUs with Triton"
        reasons["compile"] = "Triton is available" if compile else only_if

    return Hardware(
        device=chosen,
        precision=precision,
        compile=bool(compile),
        devices=devices,
        reasons=reasons,
    )


def _choose_precision(device: str, width: int) -> tuple[str, str]:
    kind = "CPU" if device == "cpu" else "GPU"
    if not _has_native_bf16(device):
        return "fp32", f"bf16 is not known to be faster on this {kind}"
    if device == "cpu" and width < CPU_BF16_WIDTH:
        return "fp32", f"on CPUs, auto means bf16 only from model.d_model={CPU_BF16_WIDTH}"
    return "bf16", f"bf16 is native on this {kind}"


def choose_dtype(dtype: str, device: str, n_weights: int = 0) -> torch.dtype | None:
    """Return the dtype of the weights for sampling, or None to keep the dtype of the checkpoint.

    'auto' means bf16 on GPUs that support it, and for large models on CPUs with instructions for it, otherwise None.
    Only 'auto' needs n_weights, the number of the model's weights.
    Raises UserError for fp64 on Apple's GPUs, which do not support float64, and for int8 on any GPU.
    """
    if dtype == "auto":
        is_large = device != "cpu" or n_weights >= CPU_BF16_WEIGHTS
        return torch.bfloat16 if is_large and _has_native_bf16(device) else None
    if dtype == "fp64" and device == "mps":
        raise UserError("dtype=fp64 is not available on Apple's GPUs; use device=cpu")
    if dtype == "int8" and device != "cpu":
        raise UserError("dtype=int8 is not available on GPUs; use dtype=bf16 or device=cpu")
    return DTYPES[dtype]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in options, such as bf16."""
    return next((name for name, value in DTYPES.items() if value == dtype), str(dtype))


def check_compiler(device: str) -> None:
    """Raise UserError if torch.compile cannot work: a GPU needs Triton, other devices need a C++ compiler."""
    if device == "cuda":
        if not _has_triton():
            raise UserError(
                "compiling requires Triton, a C compiler and compute capability 7.0 or higher; "
                "use compile=false"
            )
    elif shutil.which(CPP_COMPILER) is None:
        raise UserError(
            f"compiling requires the C++ compiler {CPP_COMPILER}; install it or use compile=false"
        )


def _has_native_bf16(device: str) -> bool:
    """Return whether a device has instructions for bf16 that PyTorch uses well.

    oneDNN's own test also accepts CPUs with avx512 but without avx512_bf16, where oneDNN emulates bf16. On ARM and on
    Apple's GPUs, bf16 was not measured, so the result is False.
    """
    if device == "cpu":
        return torch.cpu._is_avx512_bf16_supported()
    return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _has_triton() -> bool:
    is_recent = torch.cuda.get_device_capability() >= TRITON_SINCE
    is_installed = importlib.util.find_spec("triton") is not None
    # Triton compiles a launcher for each kernel with the C compiler.
    has_compiler = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
    return is_recent and is_installed and has_compiler


def clock(device: str) -> float:
    """Wait until the device has finished its queued work. Then return the seconds of a monotonic clock."""
    wait_for(torch.device(device))
    return time.perf_counter()


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished its queued work. A CPU does not queue work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next training step instead of returning it to the system.

    Tensors above 32 MB still return their memory, because a step of a large model uses many of them at the same time.
    """
    if platform.libc_ver()[0] != "glibc":
        return

    # Keep freed memory at the end of the heap, and allocate tensors of up to 32 MB in the heap.
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)  # bytes; the largest int
    libc.mallopt(M_MMAP_THRESHOLD, 2**25)  # bytes


def use_threads(threads: int | None, *, n_processes: int = 1) -> None:
    """Set the number of CPU threads of torch in this process.

    None means torch's default number. Without OMP_NUM_THREADS, n_processes on this machine share the default number.
    """
    default = _default_threads()  # read the default before it is changed below
    number = threads
    if number is None:
        number = default
        if n_processes > 1 and THREADS_VARIABLE not in os.environ:
            number = max(1, number // n_processes)
    if number != torch.get_num_threads():
        torch.set_num_threads(number)

    # Without this variable, Lightning would set its own number of threads in each process.
    if n_processes > 1:
        os.environ[THREADS_VARIABLE] = str(number)


@cache
def _default_threads() -> int:
    # The cache keeps the number of the first call, before use_threads changes it.
    return torch.get_num_threads()


def memory(device: torch.device) -> int | None:
    """Return the memory of a CUDA GPU, or else of the machine, in bytes; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return None


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory in bytes: of tensors on a CUDA GPU, or else of this process; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None

    import resource  # does not exist on Windows

    bytes_per_unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * bytes_per_unit


def give_back_memory(device: str) -> None:
    """Free the memory of discarded models on a CUDA GPU, and restart the count of peak_memory."""
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the bf16 operations per second of a GPU, or None for fp32 or a device that is not in PEAKS."""
    if device.type != "cuda" or "bf16" not in precision:
        return None
    return PEAKS.get(torch.cuda.get_device_name(device))
