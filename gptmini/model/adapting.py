"""Prepare a trained GPT for another run: change dropout, shorten the context, freeze weights."""

import re
from collections.abc import Iterator, Sequence

import torch

from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT, meta_gpt
from gptmini.system.errors import UserError, did_you_mean

POSITIONS = "position_embedding.weight"
RANGE = re.compile(r"\b(\d+)-(\d+)\b")  # range of blocks, such as 0-5


def adapt(model: GPT, config: GPTConfig) -> GPT:
    """Return a float32 copy of a GPT with another config. Only the dropout may differ, and the context may be shorter.

    Learned positions beyond the shorter context are dropped. Rotary positions have no weights.
    """
    # Copy the weights: training changes them, and the originals may be mapped from a file.
    weights = {}
    for name, weight in model.state_dict().items():
        weights[name] = weight.to(torch.float32, copy=True)
    if POSITIONS in weights:
        weights[POSITIONS] = weights[POSITIONS][: config.context_length].clone()  # (T, C)
    copied = meta_gpt(config)
    copied.load_state_dict(weights, assign=True)
    return copied


def freeze(model: GPT, prefixes: Sequence[str]) -> None:
    """Freeze some weights of a GPT. Frozen weights do not require gradients.

    Args:
        model: the GPT.
        prefixes: modules or weights by name, such as embedding, blocks.0 or blocks.2.mlp. A number may be a range:
            blocks.0-5.

    Raises UserError if a prefix does not match any weights, or if all weights would be frozen.
    """
    named = dict(model.named_parameters())
    frozen = set()
    for prefix in prefixes:
        for start in _expand_range(prefix):
            names = [name for name in named if f"{name}.".startswith(f"{start}.")]
            if not names:
                raise UserError(
                    f"freeze={prefix} does not match any weights of this model; {_hint(prefix, model)}"
                )
            frozen.update(names)

    if len(frozen) == len(named):
        raise UserError(
            "freeze must leave some weights to train, got all weights of the model; remove a prefix"
        )
    for name in frozen:
        named[name].requires_grad_(False)


def _expand_range(prefix: str) -> Iterator[str]:
    """Expand a range in a prefix: blocks.0-1 gives blocks.0 and blocks.1. Return a prefix without a range unchanged."""
    span = RANGE.search(prefix)
    if span is None or int(span[1]) > int(span[2]):
        yield prefix
        return
    for number in range(int(span[1]), int(span[2]) + 1):
        yield f"{prefix[: span.start()]}{number}{prefix[span.end() :]}"


def _hint(prefix: str, model: GPT) -> str:
    prefixes = [f"blocks.0-{model.config.n_layers - 1}"]
    for name, module in model.named_modules():
        has_weights = next(module.parameters(), None) is not None
        if name and has_weights:
            prefixes.append(name)

    top_level = [name for name, _ in model.named_children() if name in prefixes]
    return did_you_mean(prefix, prefixes, otherwise=f"choose from {', '.join(top_level)}")
