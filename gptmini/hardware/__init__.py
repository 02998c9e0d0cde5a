"""The device that this machine computes on: how it is chosen, and its clock, memory and speed."""

from gptmini.hardware.choices import (
    DTYPES,
    Hardware,
    check_compiler,
    choose_device,
    choose_dtype,
    choose_hardware,
)
from gptmini.hardware.device import (
    clock,
    keep_freed_memory,
    memory,
    peak_flops,
    peak_memory,
    use_tf32,
    use_threads,
    wait_for,
)

__all__ = [
    "DTYPES",
    "Hardware",
    "check_compiler",
    "choose_device",
    "choose_dtype",
    "choose_hardware",
    "clock",
    "keep_freed_memory",
    "memory",
    "peak_flops",
    "peak_memory",
    "use_tf32",
    "use_threads",
    "wait_for",
]
