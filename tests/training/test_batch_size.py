"""trainer.batch_size=auto: the largest divisor that fits, found in few trials. Each trial may run out of memory."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gptmini.model import GPTConfig, new_gpt
from gptmini.system.hardware import choose_hardware
from gptmini.training.devices.batch_size import (
    choose_batch_size,
    divisors,
    largest_fitting,
    peak_bytes,
)
from gptmini.training.trainer_settings import TrainerSettings
from sizes import MODERN
from training.runs import SETTINGS


@given(number=st.integers(1, 3000))
@settings(max_examples=50, deadline=None)
def test_divisors_are_all_that_divide_largest_first(number):
    assert divisors(number) == [n for n in range(number, 0, -1) if number % n == 0]


@given(
    size=st.integers(1, 5000),
    share=st.integers(1, 600),
    fixed=st.integers(0, 50),
    each=st.integers(1, 50),
)
@settings(max_examples=200, deadline=None)
def test_the_largest_divisor_that_fits_is_found_in_few_trials(size, share, fixed, each):
    tried = []

    def peak(batch_size):
        tried.append(batch_size)
        needed = fixed + each * batch_size
        return math.inf if needed > size else needed

    usable = int(0.9 * size)
    found = largest_fitting(divisors(share), peak, usable)
    fitting = [n for n in divisors(share) if fixed + each * n <= usable]
    assert found == max(fitting, default=1)
    assert len(tried) <= 3  # one sequence, two sequences, and the returned size


def test_a_size_that_unexpectedly_does_not_fit_is_passed_over():
    def peak(batch_size):
        return math.inf if batch_size == 120 else 9 + 7 * batch_size

    assert largest_fitting(divisors(480), peak, 900) == 96


def small(context_length):
    return new_gpt(GPTConfig(**MODERN | {"context_length": context_length}), 1)


@pytest.mark.parametrize(
    ("context_length", "global_batch_size", "devices", "expected"),
    [(128, 16, 1, 16), (128, 16, 2, 8), (1024, 480, 1, 8), (1024, 480, 8, 6), (16384, 6, 1, 1)],
)
def test_a_cpu_takes_at_most_8192_tokens_at_once(
    context_length, global_batch_size, devices, expected
):
    sizes = {"global_batch_size": global_batch_size, "devices": devices}
    trainer = TrainerSettings(**SETTINGS | sizes)
    hardware = choose_hardware("cpu", "fp32", False)
    assert choose_batch_size(small(context_length), trainer, hardware) == expected


@pytest.fixture
def gpu(monkeypatch):
    """A fake of torch.cuda's memory statistics with a peak of 100 bytes; the CPU computes."""
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 100)


@pytest.mark.parametrize("precision", ["fp32", "bf16_stream"])
def test_a_trial_leaves_the_model_as_it_was(gpu, precision):
    model = small(5)
    before = [parameter.clone() for parameter in model.parameters()]
    assert peak_bytes(model, 2, precision=precision, compile=False) == 100

    width = 4 if precision == "fp32" else 2
    n_logits = 2 * 5 * 64  # of two windows of five tokens, with the vocabulary padded to 64
    of_compiled = peak_bytes(model, 2, precision=precision, compile=True)
    assert of_compiled == 100 + n_logits * (2 * width + 4)

    assert all(map(torch.equal, model.parameters(), before))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("error", "is_lack"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
    ],
)
def test_only_a_lack_of_memory_makes_a_size_too_large(gpu, monkeypatch, error, is_lack):
    def fail(*batch, dtype):
        raise error

    monkeypatch.setattr("gptmini.training.devices.batch_size.training_loss", fail)
    if is_lack:
        assert peak_bytes(small(5), 2, precision="fp32", compile=False) == math.inf
    else:
        with pytest.raises(RuntimeError, match="device-side"):
            peak_bytes(small(5), 2, precision="fp32", compile=False)
