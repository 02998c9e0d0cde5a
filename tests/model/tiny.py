"""Tiny models and tokens for tests of this room."""

import pytest
import torch

from gptmini.model import GPTConfig, new_gpt
from sizes import CONTEXT as T
from sizes import G, V
from toys import wide_gpt

B = 5  # no other axis of these models has this size

# Runs a test with full heads, with grouped ones, and with one key and value head for all.
GROUPED = pytest.mark.parametrize("n_kv_heads", [None, G, 1])


def make(preset, **changes):
    return new_gpt(GPTConfig(**preset | changes), seed=0)


def wide(preset, **changes):
    """A model for evaluation with weights far from their start, so that every part of it shows in the logits."""
    return wide_gpt(preset | changes).eval()


def draw(batch_size=B, length=T):
    torch.manual_seed(2)
    return torch.randint(V, (batch_size, length))
