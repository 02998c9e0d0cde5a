"""Weights of a GPT and of the Hugging Face model that computes the same: joined, split, transposed and checked.

Hugging Face's models are "theirs" in this file, and GPT and GPTConfig are "ours".
"""

from contextlib import suppress

import torch
from torch import Tensor

from gptmini.interop.apertus import extra_names
from gptmini.interop.architectures import ARCHITECTURES, is_conv1d
from gptmini.model.config import GPTConfig
from gptmini.user_error import UserError

SHOWN = 5  # names that an error gives


def names_in(state: dict[str, Tensor], config: GPTConfig, kind: str) -> dict[str, list[str]]:
    """Our name of each weight, and the names of its parts in a state.

    Raises UserError: a weight is missing, or a tensor is left over; their names are listed.
    """
    # Before a config that claims millions of layers makes millions of names.
    if config.n_layers > len(state):
        raise UserError(
            f"the config claims {config.n_layers} layers, and there are {len(state)} tensors in all"
        )
    names = dict(ARCHITECTURES[kind].weight_names(config))
    if not config.bias:
        names = {name: theirs for name, theirs in names.items() if not name.endswith(".bias")}
    wanted = {their_name for their_names in names.values() for their_name in their_names}
    if kind == "apertus":
        wanted |= extra_names(config)
    missing = sorted(wanted - set(state))
    if missing:
        raise UserError(f"a {kind} must have the weights {_some(missing)}, and they are missing")

    left_over = set(state) - wanted
    embedding = state[embedding_name(kind)]
    head = state.get("lm_head.weight")
    if config.tie_embeddings and head is not None and torch.equal(head, embedding):
        left_over.discard("lm_head.weight")
    if left_over:
        raise UserError(
            f"a {kind} that GPT computes must have no other weights than its own, got {_some(sorted(left_over))}"
        )
    return names


def embedding_name(kind: str) -> str:
    """Their name of the token embedding."""
    return ARCHITECTURES[kind].weights_outside_blocks["embedding.weight"][0]


def weight_or_zeros(weights: dict[str, Tensor], name: str) -> Tensor:
    """A weight of the GPT; for a bias that the GPT does without, as many zeros as its weight has rows."""
    if name in weights:
        return weights[name]
    weight = weights[f"{name.removesuffix('.bias')}.weight"]
    return weight.new_zeros(len(weight))


def join_parts(
    name: str,
    their_names: list[str],
    state: dict[str, Tensor],
    shape: tuple[int, ...],
) -> Tensor:
    """Stack the parts of a weight along its first axis; UserError if the result is misshapen or not finite."""
    parts = []
    for their_name in their_names:
        part = state[their_name]
        if not part.is_floating_point():
            raise UserError(f"{their_name} must be of floating-point numbers, got {part.dtype}")
        parts.append(transpose_conv1d(their_name, part))

    joined = None
    with suppress(RuntimeError):  # parts that differ in more than their number of rows
        joined = torch.cat(parts)
    if joined is None or joined.shape != shape:
        got = " and ".join(str(tuple(part.shape)) for part in parts)
        raise UserError(f"the weight for {name} must be {shape}, got {got}")
    if not bool(joined.isfinite().all()):
        raise UserError(f"the weight for {name} must be finite, and is not")
    return joined


def split_parts(weight: Tensor, n_parts: int, config: GPTConfig) -> tuple[Tensor, ...]:
    """Split the fused projection of queries, keys and values into three parts; any other weight is one part."""
    if n_parts == 1:
        return (weight,)
    d_queries = config.n_heads * config.d_head
    d_keys = (config.n_kv_heads or config.n_heads) * config.d_head
    return weight.split([d_queries, d_keys, d_keys])  # (H D, C), (G D, C), (G D, C)


def transpose_conv1d(their_name: str, weight: Tensor) -> Tensor:
    """Transpose a Conv1D of GPT-2, (in, out), to (out, in) or back; any other weight stays."""
    return weight.T if is_conv1d(their_name, weight.ndim) else weight


def _some(names: list[str]) -> str:
    """The first names of a list, as a sentence shows them."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
