"""A run on the CPU says once that other programs take its processors."""

import itertools
import os

import pytest

from gptmini import processors
from gptmini.processors import Company, Usage
from gptmini.training.monitoring import contention
from training.watchers import Said

SLOWED = "slowed   other programs take {taken:.1f} of 2 processors, and the 2 threads of this run wait for each other; "


@pytest.fixture
def looks(monkeypatch):
    """Let each look at the processors find that others took so many of two since the look before."""
    for name in processors.USERS_OWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(contention, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(contention.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)

    def find(*taken):
        work = itertools.accumulate((*taken, *[0.0] * 20), initial=0.0)
        readings = [Usage(at=float(i), everyone=total, own=0.0) for i, total in enumerate(work)]
        monkeypatch.setattr(processors, "usage", iter(readings).__next__)

    return find


def said_in(train):
    said = Said()
    train(max_steps=8, callbacks=[contention.ContentionNotice()], loggers=[said])
    return said.lines


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ((1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), 1.0),
        ((0.0, 0.9, 0.8, 0.7), 0.7),
        ((1.0, 1.0, 0.1, 1.0, 1.0, 0.1, 1.0), None),  # short visits
        ((0.4, 0.4, 0.4, 0.4), None),  # a quiet desktop
    ],
)
def test_it_is_said_once_when_others_stay(train, looks, taken, expected):
    looks(*taken)
    lines = said_in(train)
    assert len(lines) == (expected is not None)
    for line in lines:
        assert line.startswith(SLOWED.format(taken=expected))
        assert line.endswith("go on with gptmini train resume=, whose threads will wait less")


def test_nothing_is_said_where_the_waiting_was_chosen(train, looks, monkeypatch):
    looks(1.0, 1.0, 1.0, 1.0)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert said_in(train) == []

    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(processors, "_chosen_for", Company(1.0, 2))
    assert said_in(train) == []


def test_nothing_is_said_of_one_thread(train, looks, monkeypatch):
    looks(1.0, 1.0, 1.0, 1.0)
    monkeypatch.setattr(contention.torch, "get_num_threads", lambda: 1)
    assert said_in(train) == []
