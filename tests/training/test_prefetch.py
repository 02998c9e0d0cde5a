"""Prefetched batches equal batches that are cut on demand, whether the thread or the consumer is faster."""

import itertools
import threading
import time

import numpy as np
import pytest
import torch

from gptmini.data.prepared.batches import gather
from gptmini.training.prefetch import prefetch_batches
from sizes import B, T

CPU = torch.device("cpu")
DATA = np.random.default_rng(1).integers(0, 2**16, 400).astype(np.uint16)


def starts(number):
    """The start positions of a batch's windows."""
    return np.array([number % 7, 300 - 11 * number])


def cut(number):
    return DATA[starts(number)[:, None] + np.arange(T + 1)]


@pytest.mark.parametrize("slow", ["thread", "consumer"])
def test_every_batch_is_the_one_that_gather_cuts_and_stays_so(slow):
    def slowly(number):
        time.sleep(0.01 if slow == "thread" else 0)
        return cut(number)

    batches = []
    for batch in itertools.islice(prefetch_batches(slowly, (B, T + 1), CPU), 9):
        time.sleep(0.01 if slow == "consumer" else 0)
        batches.append(batch)

    for number, batch in enumerate(batches):
        expected = gather(DATA, starts(number), T)
        assert all(part.dtype == torch.int64 for part in batch)
        assert all(map(torch.equal, batch, expected))


def test_the_thread_hands_on_its_error_and_ends_with_its_batches():
    def failing(number):
        if number == 2:
            raise OSError("the disk is gone")
        return cut(number)

    before = set(threading.enumerate())
    fine = prefetch_batches(cut, (B, T + 1), CPU)
    broken = prefetch_batches(failing, (B, T + 1), CPU)
    next(fine)
    next(broken)
    next(broken)
    with pytest.raises(OSError, match="the disk is gone"):
        next(broken)

    assert set(threading.enumerate()) - before
    fine.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
    assert set(threading.enumerate()) <= before


@pytest.mark.slow
def test_a_run_on_batches_cut_ahead_ends_in_the_same_weights(train, monkeypatch):
    def weights(devices):
        monkeypatch.setattr("gptmini.training.datamodule.CUT_AHEAD_FOR", devices)
        trainer = train(max_steps=5, batch_size=2, val_every_steps=2)
        return trainer.lightning_module.model.state_dict()

    expected = weights(())
    torch.testing.assert_close(weights(("cpu",)), expected, rtol=0, atol=0)
