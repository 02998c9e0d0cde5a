"""trainer.batch_size=auto: the largest divisor that fits, found in few trials, each of which may run out of memory."""

import pytest
import torch

from gptmini.model import GPTConfig, new_gpt
from gptmini.training.batch_size import (
    _Trial,
    check_equal_on_all_ranks,
    choose_batch_size,
    divisors,
    largest_fitting,
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
        if peak > self.size or batch_size == self.surprise:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return peak


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1, [1]), (7, [7, 1]), (12, [12, 6, 4, 3, 2, 1]), (36, [36, 18, 12, 9, 6, 4, 3, 2, 1])],
)
def test_divisors(number, expected):
    assert divisors(number) == expected


@pytest.mark.parametrize("size", [3, 40, 100, 333, 640, 10**6])
@pytest.mark.parametrize("share", [1, 7, 480, 512])
def test_the_largest_divisor_that_fits_is_found_in_few_trials(size, share):
    memory = Memory(size, fixed=9, each=7)
    found = largest_fitting(divisors(share), memory.peak, int(0.9 * size), seconds=20)

    fitting = [n for n in divisors(share) if 9 + 7 * n <= 0.9 * size]
    assert found == max(fitting, default=1)
    assert len(memory.tried) <= 3  # one sequence, two, and the size that is returned


def test_a_size_that_unexpectedly_does_not_fit_is_passed_over():
    memory = Memory(1000, fixed=9, each=7, surprise=120)
    assert largest_fitting(divisors(480), memory.peak, 900, seconds=20) == 96


def test_when_time_is_over_only_half_the_memory_is_trusted():
    times = iter([0.0, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0, 27.0, 28.0, 29.0])
    memory = Memory(1000, fixed=9, each=7)
    found = largest_fitting(divisors(480), memory.peak, 900, seconds=20, clock=lambda: next(times))
    assert found == 60  # 9 + 7 * 60 = 429, and 9 + 7 * 80 = 569
    assert memory.tried == [1, 2]


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
    """A stand-in for CUDA's counts of memory, whose peak rises by 100 bytes each time; the CPU computes."""
    asked = {"peak": 0}

    def peak(device):
        asked["peak"] += 100
        return asked["peak"]

    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", peak)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.update(emptied=True))
    return asked


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_stream"])
def test_a_trial_runs_a_micro_step_and_gives_its_memory_back(gpu, precision):
    model = small(5)
    before = [parameter.clone() for parameter in model.parameters()]

    eager = _Trial(model, torch.device("cpu"), precision=precision, compile=False, n_copies=2)
    assert eager.peak(2) == 100

    compiled = _Trial(model, torch.device("cpu"), precision=precision, compile=True, n_copies=2)
    width = 4 if precision == "fp32" else 2
    logits = 2 * 5 * 64  # of two windows of five tokens, with the vocabulary padded to 64
    assert compiled.peak(2) == 200 + logits * (2 * width + 4)

    compiled.give_back()
    assert gpu["emptied"]
    assert all(map(torch.equal, model.parameters(), before))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("other", [16, 64])
def test_ranks_that_found_different_sizes_are_told(monkeypatch, other):
    def with_another_rank(tensor, op):
        assert op is torch.distributed.ReduceOp.MAX
        tensor.copy_(torch.maximum(tensor, torch.tensor((other, -other), dtype=tensor.dtype)))

    monkeypatch.setattr(torch.distributed, "all_reduce", with_another_rank)
    if other == 16:
        check_equal_on_all_ranks(16, torch.device("cpu"))
    else:
        wanted = r"found 16 on one device and 64 on another; give trainer\.batch_size"
        with pytest.raises(ValueError, match=wanted):
            check_equal_on_all_ranks(16, torch.device("cpu"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
    ],
)
def test_only_a_lack_of_memory_makes_a_size_too_large(error, expected):
    def peak(size):
        if size > 2:
            raise error
        return 10 * size

    if expected:
        assert largest_fitting([4, 2, 1], peak, 1000, seconds=20) == 2
    else:
        with pytest.raises(RuntimeError, match="device-side"):
            largest_fitting([4, 2, 1], peak, 1000, seconds=20)
