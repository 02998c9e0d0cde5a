"""What to compute on, and how: measured, said in one line, and open to being overruled."""

import ctypes
import importlib.util
import platform
import shutil
import time
from dataclasses import dataclass

import torch

from gptmini.checks import UserError

DEVICES = ("auto", "cpu", "cuda", "mps")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
PRECISIONS = ("fp32", "bf16")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64, "int8": torch.float32}


@dataclass(frozen=True)
class Hardware:
    """A choice of device, precision and compilation."""

    device: str  # cpu, cuda or mps
    precision: str  # fp32, or bf16 for autocast over fp32 weights
    compile: bool  # whether the loss is compiled
    reason: str  # why each automatic choice fell as it did

    def __str__(self) -> str:
        """One line for the user."""
        mode = "compiled" if self.compile else "eager"
        threads = f", {torch.get_num_threads()} threads" if self.device == "cpu" else ""
        return f"{self.device}, {self.precision}, {mode}{threads}" + (f" ({self.reason})" if self.reason else "")


def choose_device(device: str) -> str:
    """Return device, or for auto cuda, else mps, else cpu; UserError if it is unknown or not here."""
    _check_name("device", device, DEVICES)
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return next(name for name, is_here in here.items() if is_here)
    if not here[device]:
        raise UserError(f"device={device} is not on this machine; use device=auto")
    return device


def choose_hardware(device: str, precision: str, compile: bool | str, devices: int = 1) -> Hardware:
    """Resolve each auto: cuda, else mps, else cpu; bf16 on a GPU that computes in it; compiled where Triton can.

    Raises UserError: an unknown name, or a device that is not here so many times; of CPUs any number of processes is.
    """
    _check_name("precision", precision, ("auto", *PRECISIONS))
    _check_name("compile", compile, ("auto", True, False))
    reasons = []
    given, device = device, choose_device(device)
    if given == "auto":
        reasons.append(
            "a GPU is here" if device == "cuda" else "no CUDA" + " or MPS" * (device == "cpu") + " device here"
        )
    here = {"cuda": torch.cuda.device_count(), "mps": 1}.get(device, devices)
    if devices > here:
        raise UserError(f"trainer.devices must be at most the {here} of {device} that are here, got {devices}")
    if precision == "auto":
        fast = _computes_in_bf16(device)
        precision = "bf16" if fast else "fp32"
        reasons.append("bf16 is native here" if fast else "bf16 pays only on a GPU that computes in it")
    if compile == "auto":
        compile = device == "cuda" and _triton_compiles()
        reasons.append("Triton compiles here" if compile else "compiling pays only on a GPU with Triton")
    return Hardware(device, precision, compile, "; ".join(reasons))


def choose_dtype(dtype: str, device: str) -> torch.dtype | None:
    """Dtype of weights to sample with: of auto bf16 on a GPU that computes in it, else None, the checkpoint's own.

    int8 rounds float32 later. Raises UserError: fp64 on a device that has it not.
    """
    if dtype == "auto":
        return torch.bfloat16 if _computes_in_bf16(device) else None
    if dtype == "fp64" and device == "mps":
        raise UserError("dtype=fp64 is not on Apple's GPUs; use device=cpu")
    return DTYPES[dtype]


def check_compiler(device: str) -> None:
    """Raise UserError unless torch.compile finds what it needs: Triton on a GPU, a C++ compiler elsewhere."""
    if device == "cuda" and not _triton_compiles():
        raise UserError("compiling needs Triton, a C compiler and compute capability 7.0, not all of them here")
    if device != "cuda" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise UserError("compiling needs a C++ compiler, got none of c++, g++ and clang++")


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


def _check_name(name: str, value: object, known: tuple) -> None:
    if not any(value is choice or (value == choice and type(value) is type(choice)) for choice in known):
        raise UserError(f"{name} must be one of {', '.join(map(str, known))}, got {value!r}")


def _computes_in_bf16(device: str) -> bool:
    return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _triton_compiles() -> bool:
    recent = torch.cuda.get_device_capability() >= (7, 0)  # Triton's oldest target, Volta
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")  # Triton builds a launcher in C
    return recent and importlib.util.find_spec("triton") is not None and compiler is not None
