"""A trained GPT as the beginning of another run: with another dropout, a shorter context, and weights that stay."""

import difflib
import re
from collections.abc import Iterator, Sequence

import torch

from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT, gpt_of_shapes
from gptmini.user_error import UserError

POSITIONS = "position_embedding.weight"
RANGE = re.compile(r"\b(\d+)-(\d+)\b")  # of blocks, as 0-5


def adapted(model: GPT, config: GPTConfig) -> GPT:
    """The weights of a GPT in float32 under a config that differs only in dropout, or in a shorter context.

    Learned positions beyond the shorter context are left out; rotary positions have no weights.
    """
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

    Returns how many parameters are frozen, as GPT.n_parameters counts them.
    Raises UserError: a prefix that no weight has, or nothing is left to train.
    """
    named = dict(model.named_parameters())
    frozen = set()
    for prefix in prefixes:
        for beginning in _each_of_range(prefix):
            found = [name for name in named if f"{name}.".startswith(f"{beginning}.")]
            if not found:
                raise UserError(
                    f"freeze={prefix} names no weights of this model{_hint(prefix, model)}"
                )
            frozen.update(found)

    if len(frozen) == len(named):
        raise UserError("freeze must leave weights to train, and names all of them")
    for name in frozen:
        named[name].requires_grad_(False)
    return model.count_parameters(frozen)


def _each_of_range(prefix: str) -> Iterator[str]:
    """The prefixes that one with a range stands for, as blocks.0 and blocks.1 for blocks.0-1; any other as it is."""
    span = RANGE.search(prefix)
    if span is None or int(span[1]) > int(span[2]):
        yield prefix
        return
    for number in range(int(span[1]), int(span[2]) + 1):
        yield f"{prefix[: span.start()]}{number}{prefix[span.end() :]}"


def _hint(prefix: str, model: GPT) -> str:
    """The end of an error message: the name nearest to a prefix that no weight has, or the first parts of all names."""
    known = [f"blocks.0-{model.config.n_layers - 1}"]
    for name, module in model.named_modules():
        has_weights = next(module.parameters(), None) is not None
        if name and has_weights:
            known.append(name)

    close = difflib.get_close_matches(prefix, known, n=1)
    if close:
        return f"; the nearest is {close[0]}"
    tops = [name for name, _ in model.named_children() if name in known]
    return f"; its parts are {', '.join(tops)}"
