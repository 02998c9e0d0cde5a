"""Activation checkpointing: blocks whose activations are computed a second time instead of kept."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gptmini.model import GPT


def recompute_activations(model: GPT) -> None:
    """Let each block forget what its backward pass needs, and compute it there again: less memory, more work."""
    for block in model.blocks:
        _recompute(block)


def _recompute(block: nn.Module) -> None:
    forward = block.forward

    def recomputed(*arguments: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **options)
        return checkpoint(forward, *arguments, use_reentrant=False, **options)

    block.forward = recomputed
