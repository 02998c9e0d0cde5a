"""Dropout by a hash. The mask of a sequence depends on the key of the sequence, and not on the rest of its batch.

Therefore a training step is the same for any number of devices and micro-steps. The functions only compute with
tensors. So they can be compiled, and recomputed activations have the same mask.
"""

import torch
from torch import Tensor


def drop(x: Tensor, keys: Tensor | None, probability: float) -> Tensor:
    """Set each element of x, (B, T, C), to 0 with a probability below 1, and divide the others by 1 - probability.

    The choice is a function of the key of the sequence, the position and the channel. keys is int32 (B,). If keys is
    None, return x.
    """
    if keys is None:
        return x
    n_positions, n_channels = x.shape[1:]
    draws = split_keys(split_keys(keys, n_positions), n_channels)  # (B, T, C)
    return x * (draws >= round(probability * 2**31)) / (1 - probability)


def split_keys(keys: Tensor, n: int) -> Tensor:
    """Make n keys from each random key: int32 (...) to (..., n), from 0 to 2^31 - 1.

    Hash each key and each number below n with lowbias32 (Wellons 2018, "Prospecting for hash functions"). The
    arithmetic is modulo 2^32. The last line makes the sign bit 0, because a shift copies the sign bit.
    """
    numbers = torch.arange(n, dtype=torch.int32, device=keys.device)  # (n,)
    mixed = keys.unsqueeze(-1) ^ numbers  # (..., n)
    mixed = (mixed ^ (mixed >> 16)) * 0x7FEB352D
    mixed = (mixed ^ (mixed >> 15)) * (0x846CA68B - 2**32)
    return mixed ^ (mixed >> 16)
