"""What every test has."""

import os
import signal

import pytest

# Tensors here are tiny, and several tests run at once: further threads would only wait for each other. The variable is
# for the programs that tests start, the fixture for the tests themselves, which import torch late or not at all.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell turns Ctrl-C off for what it starts in the background, and the programs that tests stop by Ctrl-C would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    import torch

    torch.set_num_threads(1)
