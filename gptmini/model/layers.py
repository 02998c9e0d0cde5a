"""The parts of a block that are not attention, under the names that GPTConfig uses."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptmini.attention import History

RMS_NORM_EPS = 1e-6  # nanochat's


def relu2(x: Tensor) -> Tensor:
    """Squared ReLU (So et al. 2021, section 4.2)."""
    return F.relu(x).square()


NORM: dict[str, Callable[[int, bool], nn.Module]] = {
    "layernorm": lambda d_model, bias: nn.LayerNorm(d_model, bias=bias),
    # Zhang and Sennrich 2019, section 4, without the gain.
    "rmsnorm": lambda d_model, bias: nn.RMSNorm(d_model, eps=RMS_NORM_EPS, elementwise_affine=False),
}
ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),  # the form that GPT-2's weights were trained with
    "gelu_exact": F.gelu,  # nanoGPT's; on a CPU a third of the time of the tanh form
    "relu2": relu2,
}


class Smear(nn.Module):
    """Adds to each position the K before it, each times a learned gain a channel, 0 at first: a short convolution.

    Source: K = 1 on embeddings, with a gate instead of gains, in modded-nanogpt and nanochat.
    """

    def __init__(self, n_previous: int, d_model: int) -> None:
        """Create K = n_previous gains of C each."""
        super().__init__()
        self.gains = nn.ParameterList(nn.Parameter(torch.zeros(d_model)) for _ in range(n_previous))

    def forward(self, x: Tensor, history: History | None = None) -> Tensor:
        """Map (B, T, C) to (B, T, C); history gives the positions before x, zeros at first, and takes those of x."""
        n_previous, n_tokens = len(self.gains), x.size(1)
        padded = F.pad(x, (0, 0, n_previous, 0)) if history is None else history.append(x)  # (B, K + T, C)
        for i, gain in enumerate(self.gains, start=1):
            x = x + gain * padded[:, n_previous - i : n_previous - i + n_tokens]  # (B, T, C), i positions back
        return x


class MLP(nn.Module):
    """Two projections with a nonlinearity between them, at each position alone."""

    def __init__(self, d_model: int, d_ff: int, *, activation: str, bias: bool) -> None:
        """Create C -> F -> C; activation is a key of ACTIVATION."""
        super().__init__()
        self.input = nn.Linear(d_model, d_ff, bias=bias)
        self.output = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = ACTIVATION[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        return self.output(self.activation(self.input(x)))  # (B, T, F) inside
