"""Runs that are begun and resumed in this process."""

import pytest

from commands.resuming.kills import LONG, killed
from run_folders import newest


@pytest.fixture
def begin(script, short):
    """Begin a run of seven steps."""
    return lambda *overrides: script("train", *short, *LONG, *overrides)


@pytest.fixture
def resume(script):
    """Resume the newest run, or another one."""
    return lambda *overrides, run="runs/latest": script("train", f"resume={run}", *overrides)


@pytest.fixture
def complete(begin, once):
    """Put a complete run with these overrides into the working folder, which is trained for the first test alone."""

    def run(*overrides):
        kept = once(("complete", *overrides), lambda: begin(*overrides))
        assert kept.result.code == 0
        return kept

    return run


@pytest.fixture
def interrupted(begin, once):
    """Put a run into the working folder that was killed as its sixth step began."""

    def begin_and_kill(*overrides):
        with killed(5):
            begin(*overrides)

    return lambda *overrides: once(("interrupted", *overrides), lambda: begin_and_kill(*overrides))


@pytest.fixture
def straight(complete):
    """Folder of an uninterrupted run with these overrides."""
    return lambda *overrides: newest(complete(*overrides).folder)
