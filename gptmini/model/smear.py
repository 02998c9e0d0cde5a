"""A smear adds previous positions to each position, with a gain per channel.

A model learns a smear faster than attention.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptmini.attention import Slots


class SmearHistory:
    """The earlier inputs of a smear, kept for decoding."""

    def __init__(self, slots: Slots, n_previous: int, d_model: int, *, dtype: torch.dtype) -> None:
        """Allocate (B, K + capacity, C). The K = n_previous slots before the first position stay 0."""
        shape = (slots.batch_size, n_previous + slots.capacity, d_model)
        self.buffer = torch.zeros(shape, device=slots.device, dtype=dtype)
        self.n_previous = n_previous
        self.slots = slots

    def append(self, x: Tensor) -> Tensor:
        """Store T positions x (B, T, C) in the reserved slots. Return the K earlier positions and x, (B, K + T, C)."""
        positions = self.slots.positions
        self.buffer[:, self.n_previous :][self.slots.index] = x
        if isinstance(positions, slice):
            return self.buffer[:, positions.start : positions.stop + self.n_previous]

        rows = self.slots.index[0]  # (B, 1)
        ahead = torch.arange(self.n_previous + x.size(1), device=x.device)  # (K + T,)
        return self.buffer[rows, positions[:, :1] + ahead]  # (B, K + T, C)

    def rows(self, rows: slice, slots: Slots) -> "SmearHistory":
        """Return the history of some rows. It shares the memory of this history. slots are the slots of these rows."""
        part = copy.copy(self)
        part.slots = slots
        part.buffer = self.buffer[rows]  # (n, K + capacity, C)
        return part

    def fill(self, rows: Tensor, other: "SmearHistory", n_tokens: int) -> None:
        """Copy the first n_tokens positions of other into these rows, int64 (n,)."""
        n_slots = self.n_previous + n_tokens
        self.buffer[rows, :n_slots] = other.buffer[:, :n_slots]


class Smear(nn.Module):
    """A short causal convolution: y_t = x_t + sum_k gain_k * x_{t-k} for k from 1 to K.

    Each gain_k has one learned number per channel, initially 0.
    Source: modded-nanogpt and nanochat use K = 1 on embeddings, with a gate instead of gains.
    """

    def __init__(self, n_previous: int, d_model: int) -> None:
        """Create K = n_previous gains. Each gain has C numbers."""
        super().__init__()
        self.gains = nn.ParameterList(nn.Parameter(torch.zeros(d_model)) for _ in range(n_previous))

    def forward(self, x: Tensor, history: SmearHistory | None = None) -> Tensor:
        """Map (B, T, C) to (B, T, C).

        history provides the positions before x, and it stores the positions of x. At the start of a text, the positions
        before x are zeros. If history is None, x is the start of the text.
        """
        n_previous = len(self.gains)
        n_tokens = x.size(1)
        if history is None:
            padded = F.pad(x, (0, 0, n_previous, 0))  # (B, K + T, C)
        else:
            padded = history.append(x)  # (B, K + T, C)

        for i, gain in enumerate(self.gains, start=1):
            first = n_previous - i
            earlier = padded[:, first : first + n_tokens]  # (B, T, C), i positions back
            x = x + gain.to(x.dtype) * earlier
        return x
