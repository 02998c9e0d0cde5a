"""Linear layers for decoding on a CPU, whose weights lie in memory as oneDNN multiplies them with few rows fastest."""

import platform

import torch
from torch import Tensor, nn

from gptmini.model.gpt import GPT

# Numbers of a matrix from which oneDNN is faster: a call of it takes some 20 microseconds, whatever the matrix.
LARGE = 2**17
X86 = ("x86_64", "AMD64")  # as Linux and Windows name it


class PackedLinear(nn.Module):
    """x W^T + b over a copy of W in oneDNN's own order, as torch's compiler does for frozen weights."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Copy a weight (out, in); the bias (out,) is shared."""
        super().__init__()
        self.out_features = len(weight)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


def pack(model: GPT) -> GPT:
    """Pack a model's large matrices for decoding on a CPU of the x86-64 kind, if oneDNN computes in their dtype there.

    That is float32, and bfloat16 where the processor has instructions for it.
    A packed model can be evaluated and decoded. It cannot be compiled, trained or saved. Its weights take as much
    memory as before, except that a tied embedding is kept beside its packed copy. Returns the model.
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
    """Whether any matrix of a model is packed."""
    return any(isinstance(module, PackedLinear) for module in model.modules())


def _is_computed_by_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies matrices of a dtype on this machine's CPU."""
    if platform.machine() not in X86 or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32
