"""What is chosen to compute on, by what is there."""

import re

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
    with pytest.raises(ValueError, match="devices must be at most the 1 of cuda that are here, got 2"):
        choose_hardware("auto", "auto", "auto", 2)


@pytest.mark.parametrize(
    "arguments", [("gpu", "auto", "auto"), ("cpu", "fp16", "auto"), ("cpu", "auto", "yes"), ("cpu", "auto", 1)]
)
def test_unknown_hardware_words_are_refused(arguments):
    with pytest.raises(ValueError, match="must be one of"):
        choose_hardware(*arguments)
