"""Rotary position embedding: a query and a key meet at an angle that depends on their distance alone."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Rotary(NamedTuple):
    """Cosines and sines of the positions of one call."""

    cos: Tensor  # (T, D / 2), or (B, T, D / 2) where rows of a batch differ in their positions
    sin: Tensor  # the shape of cos


def rotary_table(
    length: int, d_head: int, base: float, scaling: Mapping[str, float] | None = None
) -> Rotary:
    """Cosines and sines of the angles position / base^(2i / d_head), for each position and each pair of channels i.

    Args:
        length: number of positions, from 0 on.
        d_head: D, even.
        base: the slowest pair turns once in about 2 pi base tokens.
        scaling: the arguments of lowered; None leaves the frequencies as they are.

    Returns float32 tables on the CPU, (length, D / 2) each, of which a call takes the rows that it needs.
    """
    turns = frequencies(d_head, base)  # (D/2)
    if scaling is not None:
        turns = lowered(turns, **scaling)
    positions = torch.arange(length, dtype=torch.float32, device="cpu")  # (length)
    angles = torch.outer(positions, turns)  # (length, D/2)
    return Rotary(angles.cos(), angles.sin())


def frequencies(d_head: int, base: float) -> Tensor:
    """base^(-2i / d_head) for each pair of channels i, float32 (D/2) on the CPU, in radians a token."""
    channels = torch.arange(0, d_head, 2, dtype=torch.float32, device="cpu")  # (D/2)
    return float(base) ** -(channels / d_head)  # (D/2)


def lowered(
    plain: Tensor,
    factor: float,
    low_freq_factor: float | None = None,
    high_freq_factor: float | None = None,
    original_context_length: float | None = None,
) -> Tensor:
    """Frequencies (D/2) for a context that is longer than the one of the first training, from the plain ones (D/2).

    Each is divided by the factor. Where the other three are given, as Llama 3 has it, one that makes at least
    high_freq_factor turns within the original context stays, one that makes at most low_freq_factor turns is divided,
    and those between are mixed of both. Source: Grattafiori et al. 2024, in the code of Llama 3.1.
    """
    divided = plain / factor  # (D/2)
    if low_freq_factor is None or high_freq_factor is None or original_context_length is None:
        return divided

    turns = original_context_length * plain / (2 * math.pi)  # (D/2)
    kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    kept = kept.clamp(0, 1)  # (D/2), share of the frequency as it is
    return (1 - kept) * divided + kept * plain


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) of a head by minus the angle of its position: (B, T, H, D) to (B, T, H, D).

    Source: Su et al. 2021, section 3.2.2, with two deviations that are nanochat's: a pair takes one channel from each
    half of the head instead of two neighbours, and the sine is negated. Scores depend on differences of angles alone,
    so that either sign trains as well, but weights exported to nanochat need the negated one.
    """
    cos = rotary.cos.to(x.dtype).unsqueeze(-2)  # ([B,] T, 1, D/2)
    sin = rotary.sin.to(x.dtype).unsqueeze(-2)  # ([B,] T, 1, D/2)
    first, second = x.chunk(2, dim=-1)  # (B, T, H, D/2) each
    turned_first = first * cos + second * sin  # (B, T, H, D/2)
    turned_second = second * cos - first * sin  # (B, T, H, D/2)
    return torch.cat((turned_first, turned_second), dim=-1)  # (B, T, H, D)
