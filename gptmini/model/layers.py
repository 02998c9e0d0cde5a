"""The norms, activations and MLP of a block. GPTConfig chooses among them by name."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptmini.attention import Linear
from gptmini.model.config import NORM_EPS, ModelSettings


def relu2(x: Tensor) -> Tensor:
    """Return the squared ReLU (So et al. 2021, section 4.2)."""
    return F.relu(x).square()


class LayerNorm(nn.LayerNorm):
    """Layer norm (Ba et al. 2016) in the dtype of its input. Each call casts gain and bias to this dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., C) to (..., C)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)  # (C,)
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """RMS norm (Zhang and Sennrich 2019, section 4) in the dtype of its input. Each call casts the gain."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., C) to (..., C)."""
        gain = None if self.weight is None else self.weight.to(x.dtype)  # (C,)
        return F.rms_norm(x, self.normalized_shape, gain, self.eps)


def new_norm(settings: ModelSettings) -> nn.Module:
    """Return a norm over the residual stream. layernorm always has a gain. rmsnorm never has a bias."""
    eps = settings.norm_eps or NORM_EPS[settings.norm]
    if settings.norm == "layernorm":
        return LayerNorm(settings.d_model, eps=eps, bias=settings.bias)
    return RMSNorm(settings.d_model, eps=eps, elementwise_affine=settings.norm_gain)


ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    # Use the tanh form, because GPT-2's weights were trained with the tanh form.
    "gelu": partial(F.gelu, approximate="tanh"),
    # nanoGPT uses this form. On a CPU, it takes a third of the time of the tanh form.
    "gelu_exact": F.gelu,
    "relu2": relu2,
    # The squared leaky ReLU of OpenAI's parameter golf, with a slope of 1: no unit is dead, unlike in relu2.
    "square": torch.square,
    # Shazeer 2020, "GLU variants improve transformer": MLP multiplies silu(gate(x)) by input(x).
    "swiglu": F.silu,
}


class MLP(nn.Module):
    """Two projections with a nonlinearity between them, for each position. A gated MLP also has a gate projection."""

    def __init__(self, d_model: int, d_ff: int, *, activation: str, bias: bool) -> None:
        """Create the projections from C to F and from F to C. activation is a key of ACTIVATION."""
        super().__init__()
        self.gate = Linear(d_model, d_ff, bias=bias) if activation == "swiglu" else None
        self.input = Linear(d_model, d_ff, bias=bias)
        self.output = Linear(d_ff, d_model, bias=bias)
        self.activation = ACTIVATION[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        hidden = self.input(x)  # (B, T, F)
        if self.gate is None:
            hidden = self.activation(hidden)
        else:
            hidden = self.activation(self.gate(x)) * hidden
        return self.output(hidden)
