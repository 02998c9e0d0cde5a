"""What the machine is, and the most that its matrix products and its memory reach."""

from collections.abc import Callable
from functools import partial

import torch

from gptmini.hardware import choose_hardware, clock, memory, peak_flops

from .setting import Setting


def measure_machine(setting: Setting) -> None:
    """Add rows for the device, for its bf16 matrix products, and for its memory."""
    setting.table.measure("machine", "device", partial(describe, setting))
    setting.table.measure("machine", "bf16 product", partial(product, setting))
    setting.table.measure("machine", "copy", partial(copy_speed, setting))


def describe(setting: Setting) -> dict:
    """Return names and versions, and how gptmini would use the device."""
    device = torch.device(setting.device)
    name = torch.cuda.get_device_name() if setting.device == "cuda" else "CPU"

    hardware = choose_hardware(setting.device, "auto", "auto")
    compiled = "compiled" if hardware.compile else "eager"

    size = memory(device) or 0
    peak = peak_flops(device, "bf16") or 0.0
    return {
        "name": name,
        "used_as": f"{hardware.device} {hardware.precision} {compiled}",
        "memory_gb": size / 1e9,
        "peak_tflops": peak / 1e12,
        "torch": torch.__version__,
    }


def product(setting: Setting) -> dict:
    """Return the speed of the fastest of ten square products of random numbers in bf16."""
    n = setting.scale.product
    a = torch.randn(n, n, device=setting.device).bfloat16()  # (n, n)
    b = torch.randn(n, n, device=setting.device).bfloat16()  # (n, n)

    seconds = fastest(setting.device, lambda: a @ b)
    operations = 2 * n**3  # a multiplication and an addition for each of n terms of n * n sums
    return {"tflops": operations / seconds / 1e12}


def copy_speed(setting: Setting) -> dict:
    """Return the GB that a copy of a large tensor reads and writes in a second."""
    n_bytes = 16 * setting.scale.product**2  # 1 GB on a GPU, which no cache holds
    source = torch.empty(n_bytes, dtype=torch.uint8, device=setting.device)  # (n_bytes,)
    target = torch.empty_like(source)  # (n_bytes,)

    seconds = fastest(setting.device, lambda: target.copy_(source))
    return {"gb_per_second": 2 * n_bytes / seconds / 1e9}


def fastest(device: str, function: Callable[[], object]) -> float:
    """Return the seconds of the fastest of ten calls, after two calls that warm up."""
    times = []
    for _ in range(12):
        start = clock(device)
        function()
        times.append(clock(device) - start)
    return min(times[2:])
