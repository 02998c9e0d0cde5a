"""What a GPT is made of, as numbers and names; checked once, here."""

import sys
from dataclasses import dataclass, fields
from typing import get_args

from gptmini.attention.causal import check_heads
from gptmini.checks import UserError, shown
from gptmini.model.layers import ACTIVATION, NORM

POSITIONS = ("learned", "rotary")
INITS = ("gpt2", "zero_projections")
VOCAB_MULTIPLE = 64  # tile width at which GPU matrix products run at full speed
LARGEST = 2**32  # token ids are stored in 32 bits at most; no size beyond it is meant
LARGEST_TABLE = 2**26  # numbers in the rotary table, 256 MB: it is made whole, whatever a file claims
LARGEST_SMEAR = 64  # a sum of the whole batch for each: beyond it attention is cheaper


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """Sizes and alternatives of one GPT, neutral by default; UserError for a wrong type, range or combination."""

    vocab_size: int  # V, token kinds
    context_length: int  # T, longest input in tokens
    d_model: int  # C, width of the residual stream
    n_layers: int  # N, blocks
    n_heads: int  # H, query heads; divides C
    norm: str  # layernorm (with gain, eps 1e-5) or rmsnorm (without weights, eps 1e-6)
    position: str  # learned (a vector for each position) or rotary (queries and keys turn)
    mlp: str  # gelu (tanh form, as GPT-2), gelu_exact (as nanoGPT) or relu2 (squared ReLU)
    bias: bool  # whether projections and layer norms have one
    tie_embeddings: bool  # whether the unembedding is the token embedding
    init: str  # gpt2 (normal 0.02, output projections 0.02 / sqrt(2 N)) or zero_projections (those and unembedding 0)
    n_kv_heads: int | None = None  # G, key and value heads; divides H; None for H
    d_ff: int | None = None  # F, width inside the MLP; None for 4 C
    dropout: float = 0.0  # probability, in training: attention weights, both outputs of a block, the embedding
    rotary_base: float | None = None  # period of the slowest turn over 2 pi, in tokens; for rotary, and only then
    qk_norm: bool = False  # RMS-normalise queries and keys
    attention_scale: float | None = None  # factor on the scores; None for 1 / sqrt(D)
    embedding_norm: bool = False  # normalise the embedding before the first block
    smear: int = 0  # K, previous tokens whose embeddings each position adds, each times a learned gain a channel
    mlp_smear: int = 0  # K, previous positions that each input of an MLP adds in the same way
    logit_softcap: float | None = None  # c in c * tanh(logits / c), in nats; None for plain logits

    def __post_init__(self) -> None:
        """Check types, then ranges, then how values fit together."""
        for field in fields(self):
            name, value, types = field.name, getattr(self, field.name), get_args(field.type) or (field.type,)
            # Neither 1.0 nor True will do for an int, nor "4" for a float; but an int will.
            if type(value) not in types and not (float in types and type(value) is int):
                wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
                raise UserError(f"{name} must be {wanted}, got {name}={shown(value)}")
        sizes = ("vocab_size", "context_length", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff")
        bounds = dict.fromkeys(sizes, (1, LARGEST)) | dict.fromkeys(("smear", "mlp_smear"), (0, LARGEST_SMEAR))
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UserError(f"{name} must be from {least} to {most}, got {name}={shown(value)}")
        for name in ("rotary_base", "attention_scale", "logit_softcap"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= sys.float_info.max:
                raise UserError(f"{name} must be above 0 and finite, or null, got {name}={value}")
        for name, names in (("norm", NORM), ("position", POSITIONS), ("mlp", ACTIVATION), ("init", INITS)):
            if getattr(self, name) not in names:
                raise UserError(f"{name} must be one of {', '.join(names)}, got {name}={getattr(self, name)!r}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be at least 0 and below 1, got dropout={self.dropout}")
        check_heads(self.d_model, self.n_heads, self.n_kv_heads or self.n_heads)
        if (self.position == "rotary") != (self.rotary_base is not None):
            got = f"position={self.position} and rotary_base={self.rotary_base}"
            raise UserError(f"rotary_base must be set when position=rotary and null otherwise, got {got}")
        widths = f"d_model={self.d_model} and n_heads={self.n_heads}"
        if self.position == "rotary" and self.d_head % 2:
            raise UserError(f"d_model / n_heads must be even when position=rotary, got {widths}")
        if self.position == "rotary" and self.context_length * self.d_head > LARGEST_TABLE:
            raise UserError(
                f"context_length * d_model / n_heads must be at most {LARGEST_TABLE} when position=rotary, "
                f"got context_length={self.context_length}, {widths}"
            )

    @property
    def d_head(self) -> int:
        """D, width of one head."""
        return self.d_model // self.n_heads

    @property
    def padded_vocab_size(self) -> int:
        """V rounded up to a multiple of 64: rows of the two embedding matrices."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
