"""Choose device, precision and compilation: what suits this machine, unless the user says otherwise."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass

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
        reasons = list(self.reasons.values())
        if self.devices > 1:
            parts.append(f"{self.devices} processes")
        if self.device == "cpu":
            n_threads = torch.get_num_threads()
            threads = "1 thread" if n_threads == 1 else f"{n_threads} threads"
            parts.append(f"{threads} each" if self.devices > 1 else threads)

        line = ", ".join(parts)
        if reasons:
            line += f" ({'; '.join(reasons)})"
        return line


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

    present = _count_devices(chosen)
    if present is not None and devices > present:
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


def _count_devices(device: str) -> int | None:
    """Return the number of devices of a kind on this machine; None for the CPU, which any number of processes share."""
    if device == "cuda":
        return torch.cuda.device_count()
    if device == "mps":
        return 1
    return None


def _computes_in_bf16(device: str) -> bool:
    return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _triton_compiles() -> bool:
    is_recent = torch.cuda.get_device_capability() >= TRITON_SINCE
    is_installed = importlib.util.find_spec("triton") is not None
    # Triton compiles a launcher of each kernel with the machine's C compiler.
    has_compiler = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
    return is_recent and is_installed and has_compiler
