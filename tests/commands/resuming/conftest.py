"""Runs that are started and resumed in this process."""

import pytest

from commands.resuming.kills import LONG, killed
from run_folders import newest


@pytest.fixture
def begin(script, short):
    """Start a run of seven steps."""
    return lambda *overrides: script("train", *short, *LONG, *overrides)


@pytest.fixture
def resume(script):
    """Return a function that resumes the newest run, or the run that is given."""
    return lambda *overrides, run="runs/latest": script("train", f"resume={run}", *overrides)


@pytest.fixture
def complete(begin, once):
    """Put a finished run with these overrides into the working folder. Only the first test trains it."""

    def run(*overrides):
        kept = once(("complete", *overrides), lambda: begin(*overrides))
        assert kept.result.code == 0
        return kept

    return run


@pytest.fixture
def interrupted(begin, once):
    """Put a run into the working folder that was killed at the start of its sixth step."""

    def begin_and_kill(*overrides):
        with killed(5):
            begin(*overrides)

    return lambda *overrides: once(("interrupted", *overrides), lambda: begin_and_kill(*overrides))


@pytest.fixture
def straight(complete):
    """Return a function that returns the folder of an uninterrupted run with these overrides."""
    return lambda *overrides: newest(complete(*overrides).folder)
