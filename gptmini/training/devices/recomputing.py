"""Activation checkpointing. The activations of each block are not stored. The backward pass recomputes them."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gptmini.model import GPT


def recompute_activations(model: GPT) -> None:
    """Apply activation checkpointing to each block. This needs less memory and more computation."""
    for block in model.blocks:
        _recompute(block)


def _recompute(block: nn.Module) -> None:
    forward = block.forward

    def recomputed(*arguments: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **options)
        return checkpoint(forward, *arguments, use_reentrant=False, **options)

    block.forward = recomputed
