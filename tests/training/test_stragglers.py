"""The curves of a run on several processes name the slowest one, and say how much slower it is."""

import os
import time
from functools import partial

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers.logger import Logger

from forked import in_processes
from gptmini.launch import further_environment
from gptmini.training import Scalars

SLEEP = 0.1  # seconds in each micro-step, of which a step has two


class Kept(Logger):
    """Keeps every scalar by tag and step."""

    name = "kept"
    version = 0

    def __init__(self):
        super().__init__()
        self.values = {}

    def log_hyperparams(self, *arguments, **keywords):
        pass

    def log_metrics(self, metrics, step):
        for tag, value in metrics.items():
            self.values.setdefault(tag, {})[step] = value


class Sleeping(L.Callback):
    """Sleeps on one process: where a batch is read, or in the forward pass."""

    def __init__(self, rank, where):
        self.is_slow = torch.distributed.get_rank() == rank
        self.where = where

    def on_train_batch_end(self, trainer, pl_module, *batch):
        if self.is_slow and self.where == "data":
            time.sleep(SLEEP)

    def on_before_backward(self, *arguments):
        if self.is_slow and self.where == "forward":
            time.sleep(SLEEP)


def curves(train, n_ranks, rank, where, **settings):
    """Every scalar of a run in which one process sleeps, as this process has logged it."""
    os.environ.update(further_environment(torch.distributed.get_rank(), n_ranks, port=1))
    seen = Kept()
    sleeping = Sleeping(rank, where)
    scalars = Scalars(every_steps=3)
    # A callback that comes later sleeps after the time has begun that Scalars measures; an earlier one before it ends.
    callbacks = [sleeping, scalars] if where == "forward" else [scalars, sleeping]
    train(
        devices=n_ranks,
        callbacks=callbacks,
        loggers=[seen],
        max_steps=6,
        batch_size=1,
        **settings,
    )
    return seen.values


@pytest.mark.parametrize(
    ("strategy", "where"), [("ddp", "data"), ("ddp", "forward"), ("fsdp2", "data")]
)
def test_the_slowest_process_is_named(train, tmp_path, strategy, where):
    run = partial(curves, train, 4, 2, where, folder=tmp_path, strategy=strategy)
    seen = in_processes(4, run, folder=tmp_path)[0]
    for step in (3, 6):
        assert seen["work/slowest_rank"][step] == 2
        # It sleeps in each of a step's two micro-steps, but for the first one of all.
        assert seen["work/slowest_ms"][step] >= 1.5 * 1000 * SLEEP
        # One of four has most of the time: its ratio to the mean is at most four.
        assert 1.3 < seen["work/slowest_ratio"][step] <= 4


def test_a_run_of_one_process_has_no_slowest(train):
    seen = Kept()
    train(callbacks=[Scalars(every_steps=3)], loggers=[seen])
    assert not [tag for tag in seen.values if "slowest" in tag]
