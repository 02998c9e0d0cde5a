"""Rotary position embedding: a query and a key meet at an angle that depends on their distance alone."""

from typing import NamedTuple

import torch
from torch import Tensor


class Rotary(NamedTuple):
    """Cosines and sines of the positions of one call."""

    cos: Tensor  # (T, D / 2), or (B, T, D / 2) where rows differ in their positions
    sin: Tensor  # as cos


def rotary_table(length: int, d_head: int, base: float) -> Rotary:
    """Angles position / base^(2i / d_head): a row for each of length positions, a column for each pair of channels i.

    The slowest pair turns once in about 2 pi base tokens. Returns float32 tables; take the rows that a call needs.
    """
    frequencies = float(base) ** -(torch.arange(0, d_head, 2, dtype=torch.float32, device="cpu") / d_head)  # (D/2)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device="cpu"), frequencies)  # (length, D/2)
    return Rotary(angles.cos(), angles.sin())


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) of a head by minus the angle of its position: (B, T, H, D) to the same.

    Source: Su et al. 2021, section 3.2.2, on halves instead of neighbours and with the sine negated, as nanochat does;
    scores depend on differences of angles, so the sign changes no score's range, but exported weights need it.
    """
    cos = rotary.cos.to(x.dtype).unsqueeze(-2)  # ([B,] T, 1, D/2)
    sin = rotary.sin.to(x.dtype).unsqueeze(-2)  # ([B,] T, 1, D/2)
    first, second = x.chunk(2, dim=-1)  # (B, T, H, D/2) each
    return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)  # (B, T, H, D)
