"""The tiny run of the tests of training."""

import pytest

from gptmini.training.callbacks.checkpoints import RunCheckpoints
from pretended_gpu import compiling_gpu
from training.runs import store, train

__all__ = ["compiling_gpu", "store", "train"]


@pytest.fixture
def checkpoints():
    """RunCheckpoints, which saves last.ckpt every 4 steps."""
    return RunCheckpoints(every_steps=4)
