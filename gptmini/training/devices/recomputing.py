"""Activation checkpointing. The activations of each block are not stored. The backward pass recomputes them."""

from functools import partial

from torch.utils.checkpoint import checkpoint

from gptmini.model import GPT


def recompute_activations(model: GPT) -> None:
    """Apply activation checkpointing to each block. This needs less memory and more computation."""
    # A block draws no random numbers: the keys of its dropout are arguments.
    recompute = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    for block in model.blocks:
        block.forward = partial(recompute, block.forward)
