"""Models with wide weights, and tokens for them."""

import os

import pytest
import torch

from gptmini.model import GPTConfig, new_gpt
from sizes import TRAINED

# On a CPU the checks only prove that their code runs.
TRY_ON_CPU = os.environ.get("GPTMINI_GPU_CHECKS") == "cpu"
KINDS = pytest.mark.parametrize("kind", ["modern"] if TRY_ON_CPU else ["gpt2", "modern"])
OPTIMIZERS = pytest.mark.parametrize("optimizer", ["muon"] if TRY_ON_CPU else ["adamw", "muon"])
# Sizes that suit GPU kernels.
SIZES = {"context_length": 64, "d_model": 64, "n_layers": 2, "n_heads": 4}
B = 4


def model_of(kind, **sizes):
    """Return a model on the CPU, with matrices so wide that every part matters."""
    model = new_gpt(GPTConfig(**TRAINED[kind] | SIZES | sizes), 1)
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def drawn(model):
    torch.manual_seed(2)
    return torch.randint(257, (B, model.config.context_length + 1))
