"""Attention, from the plain formula to the module that the GPT trains with. This package requires only torch."""

from gptmini.attention.cache import KVCache as KVCache
from gptmini.attention.cache import LayerCache as LayerCache
from gptmini.attention.cache import Slots as Slots
from gptmini.attention.causal import CausalMultiHeadAttention as CausalMultiHeadAttention
from gptmini.attention.functional import attention as attention
from gptmini.attention.functional import attention_weights as attention_weights
from gptmini.attention.functional import causal_mask as causal_mask
from gptmini.attention.linear import Linear as Linear
from gptmini.attention.rotary import Rotary as Rotary
from gptmini.attention.rotary import frequencies as frequencies
from gptmini.attention.rotary import rotary_table as rotary_table
from gptmini.attention.rotary import rotate as rotate
from gptmini.attention.rotary import scale_frequencies as scale_frequencies
