"""Attention as its formula, written out: the oracle that every faster path is tested against."""

import math

import torch
from torch import Tensor


def causal_mask(n_queries: int, n_keys: int, *, device: torch.device | None = None) -> Tensor:
    """Mask in which the last query sees every key, and each earlier query one key fewer.

    The mask is aligned to the bottom-right corner, so that it also fits the T = n_queries newest of S = n_keys
    positions. Returns bool (T, S), on the device, True where query t may attend to key s: s <= t + S - T.
    """
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)


def attention_weights(
    queries: Tensor,
    keys: Tensor,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Softmax over the keys of scale * queries @ keys^T, zero wherever the mask is False.

    Args:
        queries: (..., H, T, D), or (T, D) for one head and no batch.
        keys: (..., G, S, D) or (S, D); each of the G key heads serves H / G neighbouring query heads.
        mask: bool, broadcastable to (..., H, T, S), True = may attend; each row needs one True.
        scale: factor on the scores; None for 1 / sqrt(D).

    Returns (..., H, T, S), each row summing to 1.
    Source: Vaswani et al. 2017, section 3.2.1; grouped heads: Ainslie et al. 2023, section 2.2.
    """
    keys = _expand_heads(keys, queries)  # (..., H, S, D)
    if scale is None:
        scale = 1 / math.sqrt(queries.size(-1))

    scores = scale * (queries @ keys.transpose(-2, -1))  # (..., H, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1)


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Context vectors: attention_weights(queries, keys) @ values.

    Args:
        queries, keys, mask, scale: as for attention_weights.
        values: (..., G, S, D_v), or (S, D_v) for one head and no batch.

    Returns (..., H, T, D_v).
    """
    weights = attention_weights(queries, keys, mask=mask, scale=scale)  # (..., H, T, S)
    return weights @ _expand_heads(values, queries)  # (..., H, T, D_v)


def _expand_heads(x: Tensor, queries: Tensor) -> Tensor:
    """Repeat each of G heads, (..., G, S, D), until there are as many heads as queries have, (..., H, S, D)."""
    if x.ndim == 2 or x.size(-3) == queries.size(-3):
        return x
    n_repeats = queries.size(-3) // x.size(-3)  # H / G
    return x.repeat_interleave(n_repeats, dim=-3)  # (..., H, S, D)
