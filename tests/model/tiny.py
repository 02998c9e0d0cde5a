"""Tiny models and tokens for the tests of this package."""

import pytest
import torch

from gptmini.model import GPTConfig, new_gpt
from sizes import CONTEXT as T
from sizes import G, V
from toys import wide_gpt

B = 5  # no other axis of these models has this size

# Runs a test with all key and value heads, with grouped heads, and with a single key and value head.
GROUPED = pytest.mark.parametrize("n_kv_heads", [None, G, 1])


def make(preset, **changes):
    return new_gpt(GPTConfig(**preset | changes), seed=0)


def wide(preset, **changes):
    """Return a model in eval mode with large weights, so that every part of it affects the logits."""
    return wide_gpt(preset | changes).eval()


def draw(batch_size=B, length=T):
    torch.manual_seed(2)
    return torch.randint(V, (batch_size, length))
