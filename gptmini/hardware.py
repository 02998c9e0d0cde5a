"""The device that this machine computes on: how it is chosen, and its clock, memory and speed.

python -m gptmini.hardware says what gptmini would use this machine as, and why.
"""

import argparse
import ctypes
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

from gptmini.user_error import UserError

TF32_SINCE = (8, 0)  # compute capability of the first GPUs with TF32 products, Ampere
TRITON_SINCE = (7, 0)  # compute capability of the oldest GPUs that Triton compiles for, Volta
# The C++ compiler that torch.compile calls for a CPU, as torch._inductor.config.cpp.cxx has it.
CPP_COMPILER = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
# Why device=auto chose a device; mps means Apple's GPUs.
DEVICE_REASONS = {
    "cuda": "a GPU is here",
    "mps": "no CUDA device here",
    "cpu": "no CUDA or MPS device here",
}
# dtype of the weights to sample with
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
}

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

# Numbers of two parameters of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


@dataclass(frozen=True)
class Hardware:
    """A choice of device, precision and compilation."""

    device: str  # cpu, cuda or mps
    # fp32: float32 throughout. bf16: float32 weights under torch's autocast.
    # bf16_stream: each float32 weight is rounded to bfloat16 where it is used, and activations are bfloat16.
    precision: str
    compile: bool  # whether the loss is compiled
    devices: int  # number of GPUs; on the CPU, of processes
    reasons: Mapping[str, str]  # by field, why an automatic choice fell as it did

    @property
    def tf32(self) -> bool:
        """Whether products of float32 matrices round their factors to TF32, NVIDIA's shorter and faster float32."""
        return self.device == "cuda" and torch.cuda.get_device_capability() >= TF32_SINCE

    def __str__(self) -> str:
        """Return one line for the user."""
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

        reasons = f" ({'; '.join(self.reasons.values())})" if self.reasons else ""
        return ", ".join(parts) + reasons


def choose_device(device: str) -> str:
    """Return device, which is cpu, cuda, mps or auto; for auto the first of cuda, mps and cpu that this machine has.

    Raises UserError: a device that this machine does not have.
    """
    # The faster device comes first.
    present = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if device == "auto":
        return next(name for name in present if present[name])
    if not present.get(device, False):
        raise UserError(f"device={device} is not on this machine; use device=auto")
    return device


def choose_hardware(
    device: str,
    precision: str,
    compile: bool | str,
    devices: int = 1,
) -> Hardware:
    """Replace each auto by what suits this machine.

    Args:
        device: cpu, cuda, mps, or auto for the first of cuda, mps and cpu that this machine has.
        precision: fp32, bf16, bf16_stream, or auto for bf16 on a GPU that computes in bf16 and fp32 elsewhere.
        compile: true, false, or auto for compiling on a GPU for which Triton compiles.
        devices: number of GPUs; on the CPU the number of processes, which is not limited.

    Raises UserError: a device that this machine does not have, or more devices than it has.
    """
    reasons = {}
    chosen = choose_device(device)
    if device == "auto":
        reasons["device"] = DEVICE_REASONS[chosen]

    # Any number of processes share the CPU.
    present = {"cuda": torch.cuda.device_count(), "mps": 1}.get(chosen, devices)
    if devices > present:
        raise UserError(
            f"trainer.devices must be at most the {present} of {chosen} that are here, "
            f"got {devices}"
        )

    if precision == "auto" and _computes_in_bf16(chosen):
        precision = "bf16"
        reasons["precision"] = "bf16 is native here"
    elif precision == "auto":
        precision = "fp32"
        reasons["precision"] = "bf16 pays only on a GPU that computes in it"

    if compile == "auto" and chosen == "cuda" and _triton_compiles():
        compiles = True
        reasons["compile"] = "Triton compiles here"
    elif compile == "auto":
        compiles = False
        reasons["compile"] = "compiling pays only on a GPU with Triton"
    else:
        compiles = bool(compile)

    return Hardware(
        device=chosen,
        precision=precision,
        compile=compiles,
        devices=devices,
        reasons=reasons,
    )


def choose_dtype(dtype: str, device: str) -> torch.dtype | None:
    """Return the dtype of weights to sample with; None for the dtype of the checkpoint.

    Args:
        dtype: a key of DTYPES, or auto for bf16 on a GPU that computes in bf16 and the checkpoint's dtype elsewhere.
        device: cpu, cuda or mps.

    Raises UserError: fp64 on Apple's GPUs, which have no float64.
    """
    if dtype == "auto":
        return torch.bfloat16 if _computes_in_bf16(device) else None
    if dtype == "fp64" and device == "mps":
        raise UserError("dtype=fp64 is not on Apple's GPUs; use device=cpu")
    return DTYPES[dtype]


def check_compiler(device: str) -> None:
    """Raise UserError unless torch.compile finds what it needs.

    That is Triton, a C compiler and compute capability 7.0 on a CUDA GPU, and a C++ compiler elsewhere.
    """
    if device == "cuda":
        if not _triton_compiles():
            raise UserError(
                "compiling needs Triton, a C compiler and compute capability 7.0 or higher, "
                "and one of them is missing; use compile=false"
            )
    elif shutil.which(CPP_COMPILER) is None:
        raise UserError(
            f"compiling needs the C++ compiler {CPP_COMPILER}, which is not on this machine; "
            "use compile=false"
        )


def _computes_in_bf16(device: str) -> bool:
    return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _triton_compiles() -> bool:
    is_recent = torch.cuda.get_device_capability() >= TRITON_SINCE
    is_installed = importlib.util.find_spec("triton") is not None
    # Triton compiles a launcher of each kernel with the machine's C compiler.
    has_compiler = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
    return is_recent and is_installed and has_compiler


def clock(device: str) -> float:
    """Wait until the device has finished its queued work, and return the seconds of a steady clock."""
    wait_for(torch.device(device))
    return time.perf_counter()


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished its queued work; a CPU has no queue."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


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
        threads: the number; None for torch's own. Each of several processes then takes an equal share of that, unless
            the variable has told it its number.
        n_processes: number of processes that compute together on this machine, of which this is one.
    """
    own = _own_threads()  # asked for first, whatever is set below
    number = threads
    if number is None:
        number = own
        if n_processes > 1 and VARIABLE_OF_THREADS not in os.environ:
            number = max(1, number // n_processes)
    if number != torch.get_num_threads():
        torch.set_num_threads(number)

    # Lightning would set a number of its own in each of several processes.
    if n_processes > 1:
        os.environ[VARIABLE_OF_THREADS] = str(number)


@cache
def _own_threads() -> int:
    """Torch's own number of threads, as it was before the first call."""
    return torch.get_num_threads()


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


def main() -> None:
    """Print a line for each property of the machine that is chosen or known."""
    parser = argparse.ArgumentParser(
        prog="python -m gptmini.hardware",
        description="Say what gptmini would use this machine as, and why.",
    )
    parser.error = lambda message: parser.exit(2, f"error: {message}\n")
    parser.parse_args()

    hardware = choose_hardware("auto", "auto", "auto")
    device = torch.device(hardware.device)
    said = {}
    for name in ("device", "precision", "compile"):
        chosen = str(getattr(hardware, name)).lower()
        said[name] = f"{chosen}: {hardware.reasons[name]}; trainer.{name}= overrules it"

    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        said["name"] = f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"
        products = "in TF32" if hardware.tf32 else "in full, for want of TF32"
        said["fp32"] = f"products {products}, where trainer.precision=fp32 is chosen"
    else:
        said["threads"] = f"{torch.get_num_threads()}; trainer.threads= overrules it"

    size = memory(device)
    said["memory"] = "unknown" if size is None else f"{size / 1e9:.1f} GB"
    peak = peak_flops(device, hardware.precision)
    if peak is None:
        said["peak"] = "unknown: callbacks.scalars.peak_tflops= gives work/mfu its measure"
    else:
        said["peak"] = f"{peak / 1e12:,.0f} TFLOP/s in bf16, by its maker"
    said["torch"] = torch.__version__

    for name, value in said.items():
        print(f"{name:10} {value}")


if __name__ == "__main__":
    main()
