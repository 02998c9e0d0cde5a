"""Full and minimal checkpoints of tiny models, for tests that write and damage them."""

import pytest
import torch

import gptmini
from gptmini.checkpoint.file import header
from gptmini.model import GPTConfig
from gptmini.tokenizer import CharTokenizer
from sizes import GPT2, MODERN
from toys import wide_gpt

LEARNED = GPTConfig(**GPT2)
ROTARY = GPTConfig(**MODERN)
TOKENIZER = CharTokenizer("abcdefghijk", end_of_text=False)


def make(config=LEARNED, **claims):
    """Return a checkpoint of a tiny random model. Its header claims other config values if claims are given."""
    model = wide_gpt(vars(config))
    own = header(config, TOKENIZER.to_dict(), step=7)
    own["config"] |= claims
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return {"gptmini": own, "state_dict": weights}


def small(**more):
    """Return a minimal checkpoint, a file of about two thousand bytes."""
    return {
        "gptmini": header(LEARNED, TOKENIZER.to_dict()),
        "state_dict": {"model.w": torch.arange(7.0)},
    } | more


def refusal(path):
    """Return the message of the error that loading the file raises."""
    with pytest.raises(ValueError, match=r".") as caught:
        gptmini.load(path)
    return str(caught.value)
