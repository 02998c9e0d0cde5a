"""A trained GPT as the beginning of another run: with another dropout, a shorter context, and weights that stay."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace

import torch

from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT, gpt_of_shapes
from gptmini.user_error import UserError

# Settings that may change between a model and one that begins with its weights.
ADAPTABLE = ("dropout", "context_length")
POSITIONS = "position_embedding.weight"
RANGE = re.compile(r"(\d+)-(\d+)")  # of blocks, as 0-5


def adapted(model: GPT, config: GPTConfig) -> GPT:
    """The weights of a GPT in float32 under a config that differs only in dropout, or in a shorter context.

    Learned positions beyond the shorter context are left out; rotary positions have no weights.
    Raises UserError: the configs differ in anything else, or the context is longer.
    """
    same = replace(config, dropout=model.config.dropout, context_length=model.config.context_length)
    if same != model.config:
        raise UserError(f"a model may change only {' and '.join(ADAPTABLE)} where training begins")
    if config.context_length > model.config.context_length:
        raise UserError(
            f"context_length must be at most {model.config.context_length}, as in the model that training begins "
            f"with, got {config.context_length}"
        )

    # Copied, because training changes them, and they may lie in a file.
    weights = {}
    for name, weight in model.state_dict().items():
        weights[name] = weight.to(torch.float32, copy=True)
    if POSITIONS in weights:
        weights[POSITIONS] = weights[POSITIONS][: config.context_length].clone()  # (T, C)
    made = gpt_of_shapes(config)
    made.load_state_dict(weights, assign=True)
    return made


def freeze(model: GPT, prefixes: Sequence[str]) -> int:
    """Keep training from changing some weights of a GPT.

    Args:
        model: the GPT; the weights that are named no longer require gradients.
        prefixes: beginnings of names of weights, in whole parts, as embedding, blocks.0 or blocks.2.mlp. A number may
            be a range: blocks.0-5.

    Returns how many parameters are frozen.
    Raises UserError: a prefix that no weight has, or nothing is left to train.
    """
    named = dict(model.named_parameters())
    frozen = set()
    for prefix in prefixes:
        found = [name for name in named if _begins_with(name, prefix)]
        if not found or _goes_beyond(prefix, model.config.n_layers):
            raise UserError(f"freeze={prefix} names no weights of this model{_hint(prefix, model)}")
        frozen.update(found)

    if len(frozen) == len(named):
        raise UserError("freeze must leave weights to train, and names all of them")
    for name in frozen:
        named[name].requires_grad_(False)
    return sum(named[name].numel() for name in frozen)


def _begins_with(name: str, prefix: str) -> bool:
    """Whether the parts of a name begin with those of a prefix, of which a number may be a range."""
    parts = name.split(".")
    wanted = prefix.split(".")
    if len(wanted) > len(parts):
        return False

    for part, wish in zip(parts, wanted, strict=False):
        span = RANGE.fullmatch(wish)
        in_span = (
            span is not None and part.isdecimal() and int(span[1]) <= int(part) <= int(span[2])
        )
        if part != wish and not in_span:
            return False
    return True


def _goes_beyond(prefix: str, n_layers: int) -> bool:
    """Whether a prefix names a range of blocks that ends behind the last block."""
    parts = prefix.split(".")
    span = RANGE.fullmatch(parts[1]) if len(parts) > 1 else None
    return span is not None and int(span[2]) >= n_layers


def _hint(prefix: str, model: GPT) -> str:
    """The end of an error message: the name nearest to a prefix that no weight has, or the first parts of all names."""
    names = [name for name, _ in model.named_parameters()]
    known = {f"blocks.0-{model.config.n_layers - 1}"}
    for name in names:
        inner = name.split(".")[:-1]
        known.update(".".join(inner[:n]) for n in range(1, len(inner) + 1))

    close = difflib.get_close_matches(prefix, sorted(known), n=1)
    if close:
        return f"; the nearest is {close[0]}"
    tops = dict.fromkeys(name.split(".")[0] for name in names)
    return f"; its parts are {', '.join(tops)}"
