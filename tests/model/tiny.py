"""Tiny models and tokens for tests of this room."""

import torch

from gptmini.model import GPTConfig, new_gpt
from sizes import CONTEXT as T
from sizes import V

B = 5


def make(preset, **changes):
    return new_gpt(GPTConfig(**preset | changes), seed=0)


def wide(preset, **changes):
    """Weights far from their start, so that every part of the model shows in the logits."""
    model = make(preset, **changes).eval()
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def draw(batch_size=B, length=T):
    torch.manual_seed(2)
    return torch.randint(V, (batch_size, length))
