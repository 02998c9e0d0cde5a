"""Linear layers for decoding on a CPU, with weights in the memory layout that is fastest for oneDNN, or in int8."""

import platform

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptmini.model.gpt import GPT
from gptmini.system.hardware import X86

# Pack only matrices with at least this many elements, because each call of oneDNN adds about 20 microseconds.
LARGE = 2**17
# torch's int8 kernel reads this many inputs at a time. With a rest, it reads beyond the end of the weights.
INT8_INPUTS = 16
# For more rows than this, it is faster to convert the int8 weights to bfloat16 and to multiply with oneDNN.
INT8_ROWS = 8


class PackedLinear(nn.Module):
    """A linear layer with its own copy of W, in oneDNN's layout. torch's compiler uses it for frozen weights."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Copy the weight (out, in), and share the bias (out,) with the original layer."""
        super().__init__()
        self.bias = None if bias is None else bias.detach()
        self._store(weight.detach())

    def _store(self, weight: Tensor) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class Int8Linear(PackedLinear):
    """A copy of W in int8, with one scale for each row. Scales, inputs and results are bfloat16."""

    def _store(self, weight: Tensor) -> None:
        exact = weight.float()  # (out, in)
        # The largest weight of a row becomes 127 or -127. A row of zeros needs a scale above 0.
        self.scale = (exact.abs().amax(dim=1).clamp(min=1e-30) / 127).bfloat16()  # (out,)
        self.weight = (exact / self.scale.float().unsqueeze(1)).round().to(torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        """Map bfloat16 (..., in) to (..., out)."""
        rows = x.reshape(-1, x.size(-1))  # (M, in)
        if len(rows) <= INT8_ROWS:
            result = torch._weight_int8pack_mm(rows, self.weight, self.scale)  # (M, out)
        else:
            result = F.linear(rows, self.weight.to(x.dtype)) * self.scale  # (M, out)
        if self.bias is not None:
            result = result + self.bias
        return result.view(*x.shape[:-1], -1)  # (..., out)


def pack(model: GPT, *, int8: bool = False) -> GPT:
    """Pack the large matrices of a model for faster decoding on a CPU. Return the model.

    Do nothing if oneDNN does not support the dtype. It supports float32 on x86-64. It supports bfloat16 if the CPU has
    avx512, but without avx512_bf16 it emulates bfloat16. A packed model can be evaluated and decoded, but not compiled,
    trained or saved. Weights take as much memory as before, except that a tied embedding is stored twice.

    If int8 is true, large matrices are rounded to 8 bits per weight, and everything else to bfloat16.
    """
    if int8:
        model.bfloat16()
    weight = model.unembedding_weight
    if not int8 and not _is_computed_by_onednn(weight.dtype):
        return model

    kind = Int8Linear if int8 else PackedLinear

    def is_packable(weight: Tensor) -> bool:
        return weight.numel() >= LARGE and not (int8 and weight.size(1) % INT8_INPUTS)

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and is_packable(child.weight):
                setattr(module, name, kind(child.weight, child.bias))
    if model.config.tie_embeddings and is_packable(weight):
        model.add_module("unembedding", kind(weight, None))
    return model


def is_packed(model: GPT) -> bool:
    """Return whether any matrix of a model is packed."""
    return any(isinstance(module, PackedLinear) for module in model.modules())


def dtype_of(model: GPT) -> torch.dtype:
    """Return the dtype of a model's weights. It is torch.int8 if any matrix is packed in int8."""
    is_int8 = any(isinstance(module, Int8Linear) for module in model.modules())
    return torch.int8 if is_int8 else model.embedding.weight.dtype


def _is_computed_by_onednn(dtype: torch.dtype) -> bool:
    if platform.machine() not in X86 or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32
