"""The parts of a block that are not attention, under the names that GPTConfig uses."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from gptmini.attention import Linear

RMS_NORM_EPS = 1e-6  # nanochat's


def relu2(x: Tensor) -> Tensor:
    """Squared ReLU (So et al. 2021, section 4.2)."""
    return F.relu(x).square()


class LayerNorm(nn.LayerNorm):
    """Layer norm in the dtype of its input, whose gain and offset are rounded to that dtype at each use."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., C) to (..., C)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)  # (C,)
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), bias, self.eps)


def layernorm(d_model: int, bias: bool) -> LayerNorm:
    """Layer norm with a learned gain, and a learned offset where bias is true (Ba et al. 2016)."""
    return LayerNorm(d_model, bias=bias)


def rmsnorm(d_model: int, bias: bool) -> nn.RMSNorm:
    """RMS norm without any weights, whatever bias says (Zhang and Sennrich 2019, section 4, without the gain)."""
    return nn.RMSNorm(d_model, eps=RMS_NORM_EPS, elementwise_affine=False)


NORM: dict[str, Callable[[int, bool], nn.Module]] = {
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
}
ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    # The tanh form, which GPT-2's weights were trained with.
    "gelu": partial(F.gelu, approximate="tanh"),
    # nanoGPT's form; on a CPU it takes a third of the time of the tanh form.
    "gelu_exact": F.gelu,
    "relu2": relu2,
}


class MLP(nn.Module):
    """Two projections with a nonlinearity between them, at each position alone."""

    def __init__(self, d_model: int, d_ff: int, *, activation: str, bias: bool) -> None:
        """Create C -> F -> C; activation is a key of ACTIVATION."""
        super().__init__()
        self.input = Linear(d_model, d_ff, bias=bias)
        self.output = Linear(d_ff, d_model, bias=bias)
        self.activation = ACTIVATION[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        return self.output(self.activation(self.input(x)))  # (B, T, F) inside
