"""Attention as a plain formula. The tests compare every faster implementation with this formula."""

import math

import torch
from torch import Tensor


def causal_mask(n_queries: int, n_keys: int, *, device: torch.device | None = None) -> Tensor:
    """Return the causal mask. The last query sees every key. Each earlier query sees one key fewer than the next query.

    If there are fewer queries than keys, the queries are the newest T = n_queries of S = n_keys positions.
    Returns bool (T, S) on the device. True means that query t may attend to key s: s <= t + S - T.
    """
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)


def attention_weights(
    queries: Tensor,
    keys: Tensor,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(scale * queries @ keys^T) over the keys. A weight is zero where the mask is False.

    Args:
        queries: (..., H, T, D), or (T, D) for one head without a batch.
        keys: (..., G, S, D) or (S, D). Each of the G key heads serves H / G neighbouring query heads.
        mask: bool, broadcastable to (..., H, T, S); True: the query may see the key. Each row must contain True.
        scale: factor on the scores. None: 1 / sqrt(D).

    Returns (..., H, T, S). Each row sums to 1.
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
    """Return the context vectors attention_weights(queries, keys) @ values.

    Args:
        queries, keys, mask, scale: as for attention_weights.
        values: (..., G, S, D_v), or (S, D_v) for one head without a batch.

    Returns (..., H, T, D_v).
    """
    weights = attention_weights(queries, keys, mask=mask, scale=scale)  # (..., H, T, S)
    return weights @ _expand_heads(values, queries)  # (..., H, T, D_v)


def _expand_heads(x: Tensor, queries: Tensor) -> Tensor:
    """Repeat each key or value head H / G times: (..., G, S, D) to (..., H, S, D), with H heads in queries."""
    if x.ndim == 2 or x.size(-3) == queries.size(-3):
        return x
    n_repeats = queries.size(-3) // x.size(-3)  # H / G
    return x.repeat_interleave(n_repeats, dim=-3)  # (..., H, S, D)
