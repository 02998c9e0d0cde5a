"""What to compute on, and how: measured, said in one line, and open to being overruled."""

import importlib.util
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gptmini.checks import UserError

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("fp32", "bf16", "bf16_stream")
TF32_SINCE = (8, 0)  # compute capability of the first GPUs with TF32 products, Ampere
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64, "int8": torch.float32}


@dataclass(frozen=True)
class Hardware:
    """A choice of device, precision and compilation."""

    device: str  # cpu, cuda or mps
    precision: str  # fp32; bf16, autocast over fp32 weights; bf16_stream, each fp32 weight rounded where it is used
    compile: bool  # whether the loss is compiled
    reasons: Mapping[str, str]  # why each automatic choice fell as it did, by field

    @property
    def tf32(self) -> bool:
        """Whether products of float32 matrices round their factors to TF32, NVIDIA's shorter and faster float32."""
        return self.device == "cuda" and torch.cuda.get_device_capability() >= TF32_SINCE

    def __str__(self) -> str:
        """One line for the user."""
        precision = f"{self.precision}, products in TF32" if self.precision == "fp32" and self.tf32 else self.precision
        parts = [self.device, precision, "compiled" if self.compile else "eager"]
        if self.device == "cpu":
            parts.append(f"{torch.get_num_threads()} threads")
        reasons = f" ({'; '.join(self.reasons.values())})" if self.reasons else ""
        return ", ".join(parts) + reasons


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

    On the CPU devices counts processes, and is not limited.
    Raises UserError: an unknown name, or more devices than are here.
    """
    _check_name("precision", precision, ("auto", *PRECISIONS))
    _check_name("compile", compile, ("auto", True, False))
    reasons = {}
    chosen = choose_device(device)
    if device == "auto":
        missing = "CUDA or MPS" if chosen == "cpu" else "CUDA"
        reasons["device"] = "a GPU is here" if chosen == "cuda" else f"no {missing} device here"

    here = {"cuda": torch.cuda.device_count(), "mps": 1}.get(chosen, devices)
    if devices > here:
        raise UserError(f"trainer.devices must be at most the {here} of {chosen} that are here, got {devices}")

    if precision == "auto":
        fast = _computes_in_bf16(chosen)
        precision = "bf16" if fast else "fp32"
        reasons["precision"] = "bf16 is native here" if fast else "bf16 pays only on a GPU that computes in it"
    if compile == "auto":
        compile = chosen == "cuda" and _triton_compiles()
        reasons["compile"] = "Triton compiles here" if compile else "compiling pays only on a GPU with Triton"
    return Hardware(chosen, precision, compile, reasons)


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


def _check_name(name: str, value: object, known: tuple) -> None:
    if not any(value is choice or (value == choice and type(value) is type(choice)) for choice in known):
        raise UserError(f"{name} must be one of {', '.join(map(str, known))}, got {value!r}")


def _computes_in_bf16(device: str) -> bool:
    return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _triton_compiles() -> bool:
    recent = torch.cuda.get_device_capability() >= (7, 0)  # Triton's oldest target, Volta
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")  # Triton builds a launcher in C
    return recent and importlib.util.find_spec("triton") is not None and compiler is not None
