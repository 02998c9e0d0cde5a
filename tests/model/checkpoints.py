"""Checkpoints of tiny models, whole and least, for tests that write and damage them."""

import pytest
import torch

import gptmini
from gptmini.model import GPTConfig, new_gpt
from gptmini.model.checkpoint import (
    header,
)
from gptmini.tokenizer import CharTokenizer
from sizes import GPT2, MODERN

LEARNED = GPTConfig(**GPT2)

ROTARY = GPTConfig(**MODERN)

TOKENIZER = CharTokenizer("abcdefghijk", end_of_text=False)


def make(config=LEARNED, **claims):
    """Checkpoint of a small random model, with what its header claims of the config replaced."""
    model = new_gpt(config, seed=0)
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    own = header(config, TOKENIZER.to_dict(), step=7)
    own["config"] |= claims
    return {"gptmini": own, "state_dict": {f"model.{name}": t for name, t in model.state_dict().items()}}


def small(**more):
    """The least that is a checkpoint: a file of some two thousand bytes."""
    return {"gptmini": header(LEARNED, TOKENIZER.to_dict()), "state_dict": {"model.w": torch.arange(7.0)}} | more


def refusal(path):
    with pytest.raises(ValueError, match=r".") as caught:
        gptmini.load(path)
    return str(caught.value)
