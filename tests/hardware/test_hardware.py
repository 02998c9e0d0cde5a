"""What is chosen to compute on, by what is there."""

import os
import re
import subprocess
import sys

import pytest
import torch

from gptmini.hardware import choose_hardware


def test_automatic_choice_on_a_machine_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    hardware = choose_hardware("auto", "auto", "auto")

    assert (hardware.device, hardware.precision, hardware.compile) == ("cpu", "fp32", False)
    assert re.match(r"cpu, fp32, eager, \d+ threads \(no CUDA or MPS device here; ", str(hardware))

    with pytest.raises(ValueError, match="device=cuda is not on this machine"):
        choose_hardware("cuda", "auto", "auto")


@pytest.mark.parametrize(("bf16", "expected"), [(True, "bf16"), (False, "fp32")])
def test_automatic_choice_on_a_gpu(monkeypatch, bf16, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 1))
    hardware = choose_hardware("auto", "auto", "auto")

    assert (hardware.device, hardware.precision, hardware.compile) == ("cuda", expected, False)

    wanted = "devices must be at most the 1 of cuda that are here, got 2"
    with pytest.raises(ValueError, match=wanted):
        choose_hardware("auto", "auto", "auto", 2)


@pytest.mark.parametrize(
    "arguments",
    [("gpu", "auto", "auto"), ("cpu", "fp16", "auto"), ("cpu", "auto", "yes"), ("cpu", "auto", 1)],
)
def test_unknown_hardware_words_are_refused(arguments):
    with pytest.raises(ValueError, match="must be one of"):
        choose_hardware(*arguments)


@pytest.mark.parametrize(
    ("capability", "shown"),
    [((7, 5), "cuda, fp32, eager"), ((9, 0), "cuda, fp32, products in TF32")],
)
def test_float32_on_a_gpu_says_that_its_products_are_tf32s(monkeypatch, capability, shown):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert str(choose_hardware("cuda", "fp32", False)).startswith(shown)
    assert "TF32" not in str(choose_hardware("cuda", "bf16", False))


def test_the_command_says_what_this_machine_would_be_used_as():
    command = [sys.executable, "-m", "gptmini.hardware"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    said = {line.split()[0]: line for line in result.stdout.splitlines()}

    assert {"device", "precision", "compile", "memory", "peak", "torch"} <= set(said)
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert said["device"].split(maxsplit=1)[1].startswith("cpu: no CUDA or MPS device here; ")
    for name in ("device", "precision", "compile"):
        assert said[name].endswith(f"; trainer.{name}= overrules it")

    pages = getattr(os, "sysconf", lambda name: 0)("SC_PHYS_PAGES")
    if pages and not torch.cuda.is_available():
        gigabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e9
        assert float(said["memory"].split()[1]) == pytest.approx(gigabytes, abs=0.06)
