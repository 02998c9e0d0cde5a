"""What every test has."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Tensors here are tiny: further threads would only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def shared_script(monkeypatch):
    """Import by its name a module that the scripts share."""

    def load(name):
        monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "scripts"))
        return importlib.import_module(name)

    return load
