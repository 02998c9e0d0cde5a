"""Linear layers for decoding on a CPU, with weights in the memory layout that is fastest for oneDNN."""

import platform

import torch
from torch import Tensor, nn

from gptmini.model.gpt import GPT
from gptmini.system.hardware import X86

# Pack only matrices with at least this many elements, because each call of oneDNN adds about 20 microseconds.
LARGE = 2**17


class PackedLinear(nn.Module):
    """A linear layer with a copy of W in oneDNN's own layout. torch's compiler uses this layout for frozen weights."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Copy the weight (out, in), and share the bias (out,) with the original layer."""
        super().__init__()
        self.out_features = len(weight)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


def pack(model: GPT) -> GPT:
    """Pack the large matrices of a model for faster decoding on an x86-64 CPU. Return the model.

    Do nothing if oneDNN does not support the dtype. It supports float32. It supports bfloat16 if the CPU has avx512,
    but without avx512_bf16 it emulates bfloat16. A packed model can be evaluated and decoded, but not compiled, trained
    or saved. Weights take as much memory as before, except that a tied embedding is stored twice.
    """
    weight = model.unembedding_weight
    if not _is_computed_by_onednn(weight.dtype):
        return model

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child.weight.numel() >= LARGE:
                setattr(module, name, PackedLinear(child.weight, child.bias))
    if model.config.tie_embeddings and weight.numel() >= LARGE:
        model.add_module("unembedding", PackedLinear(weight, None))
    return model


def is_packed(model: GPT) -> bool:
    """Return whether any matrix of a model is packed."""
    return any(isinstance(module, PackedLinear) for module in model.modules())


def _is_computed_by_onednn(dtype: torch.dtype) -> bool:
    if platform.machine() not in X86 or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32
