"""The tiny run of the training room."""

import pytest

from gptmini.training.callbacks.checkpoints import RunCheckpoints
from training.runs import store, train

__all__ = ["store", "train"]


@pytest.fixture
def checkpoints():
    """The checkpointing callback, saving last every 4 steps."""
    return RunCheckpoints(every_steps=4)
