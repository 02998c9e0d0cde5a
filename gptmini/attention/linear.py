"""The linear layer of the GPT. The layer computes in the dtype of its input."""

from torch import Tensor, nn
from torch.nn import functional as F


class Linear(nn.Linear):
    """A linear layer that computes x W^T + b in the dtype of x.

    If x is bfloat16, each call casts the float32 weights to bfloat16. Source: nanochat.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)  # (out,)
        return F.linear(x, self.weight.to(x.dtype), bias)  # (..., out)
