"""Attention, from the plain formula to the module that the GPT trains with. This package requires only torch."""

from gptmini.attention.cache import KVCache, LayerCache, Slots
from gptmini.attention.causal import CausalMultiHeadAttention
from gptmini.attention.functional import attention, attention_weights, causal_mask
from gptmini.attention.linear import Linear
from gptmini.attention.rotary import Rotary, rotary_table, rotate

__all__ = [
    "CausalMultiHeadAttention",
    "KVCache",
    "LayerCache",
    "Linear",
    "Rotary",
    "Slots",
    "attention",
    "attention_weights",
    "causal_mask",
    "rotary_table",
    "rotate",
]
