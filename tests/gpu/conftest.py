"""Fixtures of the GPU checks: the device, and the tiny run of tests/training with sizes that suit GPU kernels."""

from functools import partial

import pytest
import torch

from gpu.parts import SIZES, TRY_ON_CPU
from training.runs import store, train

__all__ = ["store", "train"]


@pytest.fixture
def device(monkeypatch):
    """Return the device name: cuda, or cpu if GPTMINI_GPU_CHECKS=cpu."""
    if TRY_ON_CPU:
        # Inductor would take a minute.
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
        yield "cpu"
        return

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # no TF32, unless a check sets it
    yield "cuda"
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def run(train, device):
    """Train a small model on the device; the options are those of train."""

    def on_device(kind="modern", *, sizes=SIZES, **options):
        return train(kind, sizes=sizes, **{"device": device, "batch_size": 4} | options)

    return on_device
