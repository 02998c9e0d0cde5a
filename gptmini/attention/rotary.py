"""Rotary position embedding. The rotation between a query and a key depends only on the distance of their positions."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Rotary(NamedTuple):
    """The cosines and the sines of the angles at some positions."""

    cos: Tensor  # (T, D / 2), or (B, T, D / 2) if the rows of a batch have different positions
    sin: Tensor  # same shape as cos


def rotary_table(
    length: int, d_head: int, base: float, scaling: Mapping[str, float] | None = None
) -> Rotary:
    """Return the cosines and sines of position / base^(2i / d_head), for each position and each channel pair i.

    Args:
        length: number of positions, starting at 0.
        d_head: D, even.
        base: the slowest pair makes one turn in about 2 * pi * base tokens.
        scaling: keyword arguments of scale_frequencies. None: the frequencies are not scaled.

    Returns float32 tables on the CPU, (length, D / 2) each. A forward pass uses the rows of its positions.
    """
    radians_per_token = frequencies(d_head, base)  # (D/2)
    if scaling is not None:
        radians_per_token = scale_frequencies(radians_per_token, **scaling)
    positions = torch.arange(length, dtype=torch.float32, device="cpu")  # (length)
    angles = torch.outer(positions, radians_per_token)  # (length, D/2)
    return Rotary(angles.cos(), angles.sin())


def frequencies(d_head: int, base: float) -> Tensor:
    """Return base^(-2i / d_head) for each channel pair i, float32 (D/2) on the CPU, in radians per token."""
    channels = torch.arange(0, d_head, 2, dtype=torch.float32, device="cpu")  # (D/2)
    return float(base) ** -(channels / d_head)  # (D/2)


def scale_frequencies(
    plain: Tensor,
    factor: float,
    low_freq_factor: float | None = None,
    high_freq_factor: float | None = None,
    original_context_length: float | None = None,
) -> Tensor:
    """Scale the plain frequencies (D/2) for a context that was lengthened after pretraining. Return the result, (D/2).

    If only factor is given, every frequency is divided by it. If the other three arguments are given, the result
    depends on the number of turns that a frequency makes within the original context:

    - at least high_freq_factor turns: the frequency is kept
    - at most low_freq_factor turns: the frequency is divided by the factor
    - between these two numbers of turns: linear interpolation

    Source: Grattafiori et al. 2024, in the code of Llama 3.1.
    """
    divided = plain / factor  # (D/2)
    if low_freq_factor is None or high_freq_factor is None or original_context_length is None:
        return divided

    turns = original_context_length * plain / (2 * math.pi)  # (D/2)
    share = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    share = share.clamp(0, 1)  # (D/2), of the plain frequency in the mix
    return (1 - share) * divided + share * plain


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate each pair (x[i], x[i + D/2]) of a head by minus the angle of its position: (B, T, H, D) to (B, T, H, D).

    Source: Su et al. 2021, section 3.2.2, with two changes from nanochat. A pair takes one channel from each half of
    the head instead of two neighbours, and the sine is negated. Scores depend only on differences of angles, so
    a model trains equally well with either sign of the sine. Weights exported to nanochat need the negated sine.
    """
    cos = rotary.cos.to(x.dtype).unsqueeze(-2)  # ([B,] T, 1, D/2)
    sin = rotary.sin.to(x.dtype).unsqueeze(-2)  # ([B,] T, 1, D/2)
    first, second = x.chunk(2, dim=-1)  # (B, T, H, D/2) each
    turned_first = first * cos + second * sin  # (B, T, H, D/2)
    turned_second = second * cos - first * sin  # (B, T, H, D/2)
    return torch.cat((turned_first, turned_second), dim=-1)  # (B, T, H, D)
