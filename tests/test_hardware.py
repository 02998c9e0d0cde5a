"""What is chosen to compute on, by what is there."""

import os
import re
import subprocess
import sys

import pytest
import torch

from gptmini.hardware import choose_hardware
from gptmini.user_error import UserError


def test_automatic_choice_on_a_machine_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    hardware = choose_hardware("auto", "auto", "auto")

    assert (hardware.device, hardware.precision, hardware.compile) == ("cpu", "fp32", False)
    assert re.match(r"cpu, fp32, eager, \d+ threads? \(no CUDA or MPS device here; ", str(hardware))

    for name in ("cuda", "gpu"):
        with pytest.raises(UserError, match=f"device={name} is not on this machine"):
            choose_hardware(name, "auto", "auto")


def test_the_line_of_the_machine_counts_processes_and_threads():
    before = torch.get_num_threads()
    lines = {}
    try:
        for n_threads, n_processes in ((1, 1), (3, 1), (1, 2), (3, 2)):
            torch.set_num_threads(n_threads)
            hardware = choose_hardware("cpu", "fp32", False, n_processes)
            lines[n_threads, n_processes] = str(hardware)
    finally:
        torch.set_num_threads(before)

    assert lines == {
        (1, 1): "cpu, fp32, eager, 1 thread",
        (3, 1): "cpu, fp32, eager, 3 threads",
        (1, 2): "cpu, fp32, eager, 2 processes, 1 thread each",
        (3, 2): "cpu, fp32, eager, 2 processes, 3 threads each",
    }


# Asks for threads, one request after another, and prints how many torch computes with after each.
THREADS = """
import os
import torch
from gptmini.hardware import use_threads

torch.set_num_threads(6)
requests = (None, 1), (1, 1), (2, 1), (None, 1), (None, 3), (4, 2)
for threads, n_processes in requests:
    use_threads(threads, n_processes=n_processes)
    print(torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS"))
"""


def test_no_number_of_threads_means_torchs_own_number_again():
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", THREADS]
    options = {"capture_output": True, "text": True, "env": variables}
    result = subprocess.run(command, check=True, **options)

    # Processes that compute together share torch's own number, and are told their share by the environment.
    expected = ["6 None", "1 None", "2 None", "6 None", "2 2", "4 4"]
    assert result.stdout.splitlines() == expected


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


def test_a_mistake_on_the_command_line_is_one_line(monkeypatch, capsys):
    from gptmini.hardware import main

    monkeypatch.setattr(sys, "argv", ["gptmini.hardware", "--foo"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: unrecognized arguments: --foo\n"
