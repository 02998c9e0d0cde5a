"""Say what gptmini would use this machine as, and why: python -m gptmini.hardware."""

import argparse

import torch

from gptmini.hardware import choose_hardware, memory, peak_flops


def main() -> None:
    """Print a line for each thing that is chosen or known."""
    argparse.ArgumentParser(prog="python -m gptmini.hardware", description=__doc__).parse_args()

    hardware = choose_hardware("auto", "auto", "auto")
    device = torch.device(hardware.device)
    for name in ("device", "precision", "compile"):
        chosen = str(getattr(hardware, name)).lower()
        print(f"{name:10} {chosen}: {hardware.reasons[name]}; trainer.{name}= overrules it")

    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        print(f"{'name':10} {torch.cuda.get_device_name(device)}, compute capability {major}.{minor}")
        products = "in TF32" if hardware.tf32 else "in full, for want of TF32"
        print(f"{'fp32':10} products {products}, where trainer.precision=fp32 is chosen")
    else:
        print(f"{'threads':10} {torch.get_num_threads()}; trainer.threads= overrules it")

    size = memory(device)
    print(f"{'memory':10} {'unknown' if size is None else f'{size / 1e9:.1f} GB'}")
    peak = peak_flops(device, hardware.precision)
    known = "unknown: callbacks.scalars.peak_tflops= gives work/mfu its measure"
    print(f"{'peak':10} {known if peak is None else f'{peak / 1e12:,.0f} TFLOP/s in bf16, by its maker'}")
    print(f"{'torch':10} {torch.__version__}")


if __name__ == "__main__":
    main()
