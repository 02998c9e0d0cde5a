"""The sizes and alternatives of a GPT, as numbers and names, which are checked in this module alone."""

import sys
from dataclasses import dataclass, fields
from typing import Any, get_args

from gptmini.attention.causal import check_heads
from gptmini.checks import UserError, shown
from gptmini.model.layers import ACTIVATION, NORM

VOCAB_MULTIPLE = 64  # tile width at which GPU matrix products run at full speed
LARGEST = 2**32  # token ids are stored in 32 bits at most, and no other size comes near
# Most numbers of the rotary table, 256 MB in float32. The table is built whole: without a limit, a damaged checkpoint
# that claims a huge context_length would fill the memory.
LARGEST_TABLE = 2**26
LARGEST_SMEAR = 64  # each previous token costs a pass over the batch; attention is cheaper beyond
# Every size, and the range that it must lie in.
RANGES = {
    "vocab_size": (1, LARGEST),
    "context_length": (1, LARGEST),
    "d_model": (1, LARGEST),
    "n_layers": (1, LARGEST),
    "n_heads": (1, LARGEST),
    "n_kv_heads": (1, LARGEST),
    "d_ff": (1, LARGEST),
    "smear": (0, LARGEST_SMEAR),
    "mlp_smear": (0, LARGEST_SMEAR),
}
POSITIVE = ("rotary_base", "attention_scale", "logit_softcap")  # numbers that are above 0, or None
# Every alternative, and the names that it can have.
NAMES = {
    "norm": NORM,
    "position": ("learned", "rotary"),
    "mlp": ACTIVATION,
    "init": ("gpt2", "zero_projections"),
}


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """Sizes and alternatives of one GPT, neutral by default; UserError for a wrong type, range or combination."""

    vocab_size: int  # V, token kinds
    context_length: int  # T, longest input in tokens
    d_model: int  # C, width of the residual stream
    n_layers: int  # N, blocks
    n_heads: int  # H, query heads; divides C
    norm: str  # layernorm (with gains, eps 1e-5) or rmsnorm (without weights, eps 1e-6)
    position: str  # learned (a vector for each position) or rotary (queries and keys turn)
    mlp: str  # gelu (tanh form, as GPT-2), gelu_exact (as nanoGPT) or relu2 (squared ReLU)
    bias: bool  # whether projections and layer norms have a bias
    tie_embeddings: bool  # whether the unembedding is the token embedding
    # gpt2 (normal 0.02, output projections 0.02 / sqrt(2 N)) or zero_projections (output projections and unembedding 0)
    init: str
    n_kv_heads: int | None = None  # G, key and value heads; divides H; None for H
    d_ff: int | None = None  # F, width inside the MLP; None for 4 C
    # Probability, in training, of dropping a number of attention weights, a block's two outputs and the embedding.
    dropout: float = 0.0
    # Period of the slowest turn in tokens, over 2 pi; set for position=rotary, None otherwise.
    rotary_base: float | None = None
    qk_norm: bool = False  # RMS-normalise queries and keys
    attention_scale: float | None = None  # factor on the scores; None for 1 / sqrt(D)
    embedding_norm: bool = False  # normalise the embedding before the first block
    # K, number of previous tokens whose embeddings each position adds, each channel times a learned gain.
    smear: int = 0
    # K, number of previous positions that each input of an MLP adds, each channel times a learned gain.
    mlp_smear: int = 0
    logit_softcap: float | None = None  # c in c * tanh(logits / c), in nats; None for plain logits

    def __post_init__(self) -> None:
        """Raise UserError unless types, ranges and names are right and the values fit each other."""
        # Each check relies on the ones before: a comparison needs a number, a division a divisor above 0.
        self._check_types()
        self._check_ranges()
        self._check_names()
        self._check_dropout()
        check_heads(self.d_model, self.n_heads, self.n_kv_heads or self.n_heads)
        self._check_rotary()

    def _check_types(self) -> None:
        """Raise UserError for a value of another type than its field's; a float field takes whole numbers too."""
        for field in fields(self):
            value = getattr(self, field.name)
            types = get_args(field.type) or (field.type,)
            # The exact type is compared, because True is an instance of int.
            is_whole_float = float in types and type(value) is int
            if type(value) not in types and not is_whole_float:
                wanted = " or ".join(_type_name(kind) for kind in types)
                raise UserError(f"{field.name} must be {wanted}, got {field.name}={shown(value)}")

    def _check_ranges(self) -> None:
        """Raise UserError for a size out of its range, or another number that must be positive and is not."""
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UserError(f"{name} must be from {least} to {most}, got {name}={shown(value)}")

        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0 < value <= sys.float_info.max:
                raise UserError(f"{name} must be above 0 and finite, or null, got {name}={value}")

    def _check_names(self) -> None:
        """Raise UserError for an alternative of an unknown name."""
        for name, known in NAMES.items():
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"{name} must be one of {', '.join(known)}, got {name}={value!r}")

    def _check_dropout(self) -> None:
        """Raise UserError unless dropout is a probability below 1."""
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be at least 0 and below 1, got dropout={self.dropout}")

    def _check_rotary(self) -> None:
        """Raise UserError unless rotary_base, the width of a head and the context fit the position embedding."""
        is_rotary = self.position == "rotary"
        if is_rotary != (self.rotary_base is not None):
            raise UserError(
                "rotary_base must be set when position=rotary and null otherwise, "
                f"got position={self.position} and rotary_base={self.rotary_base}"
            )
        if not is_rotary:
            return

        widths = f"d_model={self.d_model} and n_heads={self.n_heads}"
        if self.d_head % 2:
            raise UserError(f"d_model / n_heads must be even when position=rotary, got {widths}")
        if self.context_length * self.d_head > LARGEST_TABLE:
            raise UserError(
                f"context_length * d_model / n_heads must be at most {LARGEST_TABLE} "
                f"when position=rotary, got context_length={self.context_length}, {widths}"
            )

    @property
    def d_head(self) -> int:
        """D, width of one head."""
        return self.d_model // self.n_heads

    @property
    def padded_vocab_size(self) -> int:
        """V rounded up to a multiple of 64: number of rows of the embedding and of the unembedding."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def _type_name(kind: Any) -> str:
    """Name of a type as a user writes its values in YAML, where None is null."""
    return "null" if kind is type(None) else kind.__name__
