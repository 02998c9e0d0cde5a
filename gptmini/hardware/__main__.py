"""Say what gptmini would use this machine as, and why: python -m gptmini.hardware."""

import argparse

import torch

from gptmini.hardware import choose_hardware, memory, peak_flops


def main() -> None:
    """Print a line for each property of the machine that is chosen or known."""
    parser = argparse.ArgumentParser(prog="python -m gptmini.hardware", description=__doc__)
    parser.error = lambda message: parser.exit(2, f"error: {message}\n")
    parser.parse_args()

    hardware = choose_hardware("auto", "auto", "auto")
    device = torch.device(hardware.device)
    for name in ("device", "precision", "compile"):
        chosen = str(getattr(hardware, name)).lower()
        print_line(name, f"{chosen}: {hardware.reasons[name]}; trainer.{name}= overrules it")

    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        major, minor = torch.cuda.get_device_capability(device)
        print_line("name", f"{name}, compute capability {major}.{minor}")

        products = "in TF32" if hardware.tf32 else "in full, for want of TF32"
        print_line("fp32", f"products {products}, where trainer.precision=fp32 is chosen")
    else:
        print_line("threads", f"{torch.get_num_threads()}; trainer.threads= overrules it")

    size = memory(device)
    print_line("memory", "unknown" if size is None else f"{size / 1e9:.1f} GB")

    peak = peak_flops(device, hardware.precision)
    if peak is None:
        print_line("peak", "unknown: callbacks.scalars.peak_tflops= gives work/mfu its measure")
    else:
        print_line("peak", f"{peak / 1e12:,.0f} TFLOP/s in bf16, by its maker")

    print_line("torch", torch.__version__)


def print_line(name: str, value: str) -> None:
    """Print a property's name, and its value in a second column."""
    print(f"{name:10} {value}")


if __name__ == "__main__":
    main()
