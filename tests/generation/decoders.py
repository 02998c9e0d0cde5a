"""Models to decode, and the ids drawn from them."""

import pytest
import torch

from gptmini.generation import CompiledSession, Request, Rules, Session
from gptmini.model import GPTConfig, new_gpt
from gptmini.tokenizer import CharTokenizer
from sizes import GPT2, LLAMA, MODERN, SMEARED, G, V

GROUPED = {"n_kv_heads": G}  # the cache has fewer heads than there are query heads
PRESETS = pytest.mark.parametrize(
    "preset",
    [GPT2, MODERN | GROUPED, SMEARED | GROUPED, LLAMA | GROUPED],
    ids=["gpt2", "modern", "smeared", "llama"],
)
PROMPTS = [
    [3, 1, 4, 1, 5],
    [9],
    [5, 8, 9, 7, 10, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2],
    [3, 8],
    [4, 6, 2, 6, 4],
]
LETTERS = CharTokenizer("abcdefghijklmnopqrstuvwxyz"[:V], end_of_text=False)
SETTINGS = {"temperature": 1.5, "top_k": 8, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.3}


def make(preset=GPT2, **changes):
    """Return a float64 model, so that rounding decides no near tie, with large weights, so that every part matters."""
    model = new_gpt(GPTConfig(**preset | changes), seed=0).double().eval()
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 or "smear" in name or "gain" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def generate(
    model,
    prompts=PROMPTS,
    n_tokens=40,
    *,
    seed=7,
    batch_size=3,
    series=None,
    ends=(),
    compile=False,
    **rules,
):
    """Return the ids drawn for each prompt; ends has pairs (sample, number of tokens after which it ends)."""
    session = (CompiledSession if compile else Session)(
        model,
        LETTERS,
        batch_size=min(batch_size, len(prompts)),
        capacity=max(map(len, prompts)) + n_tokens,
    )
    for prompt, number in zip(prompts, series or range(len(prompts)), strict=True):
        session.add(Request(prompt=prompt, rules=Rules(**rules), seed=seed, series=number))
    drawn = [[] for _ in prompts]
    lasts = dict.fromkeys(range(len(prompts)), n_tokens) | dict(ends)

    while pieces := session.step():
        assert len(pieces) <= batch_size
        for piece in pieces:
            drawn[piece.sample].append(piece.token)
            if len(drawn[piece.sample]) == lasts[piece.sample]:
                session.end(piece.sample)

    return drawn
