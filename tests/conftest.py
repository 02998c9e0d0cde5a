"""What every test has."""

import os

import pytest

# Tensors here are tiny, and several tests run at once: further threads would only wait for each other. The variable is
# for the programs that tests start, the fixture for the tests themselves, which import torch late or not at all.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    import torch

    torch.set_num_threads(1)
