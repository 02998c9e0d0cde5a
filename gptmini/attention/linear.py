"""The linear layer of the GPT, whose weights follow the dtype of what they are multiplied with."""

from torch import Tensor, nn
from torch.nn import functional as F


class Linear(nn.Linear):
    """x W^T + b in the dtype of x: where x is bfloat16, float32 weights are rounded at each use. Source: nanochat."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)  # (out,)
        return F.linear(x, self.weight.to(x.dtype), bias)  # (..., out)
