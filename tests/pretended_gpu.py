"""A pretended GPU that can compile: trainer.compile=auto weighs it, but the CPU runs the code as it is."""

from dataclasses import replace

import pytest
import torch

from gptmini.system.hardware import choose_hardware
from gptmini.training import assembling
from gptmini.training.budget.timing import measure_module
from gptmini.training.devices import compilation


@pytest.fixture
def compiling_gpu(monkeypatch):
    """Return a function that sets the seconds of a step. It returns a list of the numbers of measured micro-steps."""
    measured = []

    def choose(device, precision, compile, *others, **options):
        hardware = choose_hardware(device, precision, compile, *others, **options)
        if compile != "auto":
            return hardware
        return replace(hardware, compile=True, reasons={**hardware.reasons, "compile": "it can"})

    def set_seconds(seconds_a_step):
        def measure(trial, seconds):
            assert not trial.hardware.compile
            measure_module(trial, seconds=0.0)
            measured.append(trial.settings.n_micro_steps)
            return seconds_a_step, 0.0

        monkeypatch.setattr(compilation, "measure_module", measure)
        return measured

    monkeypatch.setattr(assembling, "choose_hardware", choose)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    return set_seconds
