"""trainer.batch_size=auto: the largest divisor that fits, found in few trials, each of which may run out of memory."""

import math

import pytest
import torch

from gptmini.model import GPTConfig, new_gpt
from gptmini.training.batch_size import (
    choose_batch_size,
    divisors,
    largest_fitting,
    peak_bytes,
)
from sizes import MODERN


class Memory:
    """A GPU whose memory a batch of any size fills by a fixed part and an even share."""

    def __init__(self, size, fixed, each, surprise=None):
        self.size = size
        self.fixed = fixed
        self.each = each
        self.surprise = surprise
        self.tried = []

    def peak(self, batch_size):
        self.tried.append(batch_size)
        peak = self.fixed + self.each * batch_size
        return math.inf if peak > self.size or batch_size == self.surprise else peak


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1, [1]), (7, [7, 1]), (12, [12, 6, 4, 3, 2, 1]), (36, [36, 18, 12, 9, 6, 4, 3, 2, 1])],
)
def test_divisors(number, expected):
    assert divisors(number) == expected


@pytest.mark.parametrize("size", [3, 15, 40, 100, 333, 640, 10**6])
@pytest.mark.parametrize("share", [1, 7, 480, 512])
def test_the_largest_divisor_that_fits_is_found_in_few_trials(size, share):
    memory = Memory(size, fixed=9, each=7)
    found = largest_fitting(divisors(share), memory.peak, int(0.9 * size))

    fitting = [n for n in divisors(share) if 9 + 7 * n <= 0.9 * size]
    assert found == max(fitting, default=1)
    assert len(memory.tried) <= 3  # one sequence, two, and the size that is returned


def test_a_size_that_unexpectedly_does_not_fit_is_passed_over():
    memory = Memory(1000, fixed=9, each=7, surprise=120)
    assert largest_fitting(divisors(480), memory.peak, 900) == 96


def small(context_length):
    return new_gpt(GPTConfig(**MODERN | {"context_length": context_length}), 1)


@pytest.mark.parametrize(
    ("context_length", "global_batch_size", "devices", "expected"),
    [(128, 16, 1, 16), (128, 16, 2, 8), (1024, 480, 1, 8), (1024, 480, 8, 6), (16384, 6, 1, 1)],
)
def test_a_cpu_takes_at_most_8192_tokens_at_once(
    context_length, global_batch_size, devices, expected
):
    found = choose_batch_size(
        small(context_length),
        global_batch_size=global_batch_size,
        n_ranks=devices,
        device="cpu",
        precision="fp32",
        compile=False,
    )
    assert found == expected


@pytest.fixture
def gpu(monkeypatch):
    """A stand-in for CUDA's counts of memory, whose peak is always 100 bytes; the CPU computes."""
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 100)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_stream"])
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

    monkeypatch.setattr("gptmini.training.batch_size.training_loss", fail)
    if is_lack:
        assert peak_bytes(small(5), 2, precision="fp32", compile=False) == math.inf
    else:
        with pytest.raises(RuntimeError, match="device-side"):
            peak_bytes(small(5), 2, precision="fp32", compile=False)
