"""What every test has."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Tensors here are tiny: further threads would only wait for each other."""
    import torch

    torch.set_num_threads(1)
