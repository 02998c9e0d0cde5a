"""The sizes and alternatives of a GPT, as numbers and names, which are checked in this module alone.

This module imports no torch, so that a command tells a wrong value before torch is imported.
"""

from dataclasses import asdict
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from gptmini.settings import STRICT, BelowOne, first_mistake
from gptmini.user_error import UserError

VOCAB_MULTIPLE = 64  # tile width at which GPU matrix products run at full speed
# Most numbers of the rotary table, 256 MB in float32. The table is built whole: without a limit, a damaged checkpoint
# that claims a huge context_length would fill the memory.
LARGEST_TABLE = 2**26

# Token ids are stored in 32 bits at most, and no other size comes near.
Size = Annotated[int, Field(ge=1, le=2**32)]
# Far beyond any real model. A million layers, typed by mistake, would fill the memory before the first of them is used.
Layers = Annotated[int, Field(ge=1, le=10_000)]
# Each previous token costs a pass over the batch; attention is cheaper beyond 64.
Smeared = Annotated[int, Field(ge=0, le=64)]
PositiveFactor = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelSettings:
    """Sizes and alternatives of one GPT but for its vocabulary, neutral by default.

    Raises pydantic.ValidationError, a ValueError: a wrong type, range or combination.
    """

    context_length: Size  # T, longest input in tokens
    d_model: Size  # C, width of the residual stream
    n_layers: Layers  # N, blocks
    n_heads: Size  # H, query heads; divides C
    # layernorm has gains and an eps of 1e-5; rmsnorm has no weights, and an eps of 1e-6.
    norm: Literal["layernorm", "rmsnorm"]
    # learned is a vector for each position; with rotary, queries and keys turn.
    position: Literal["learned", "rotary"]
    # gelu is the tanh form of GPT-2, gelu_exact that of nanoGPT, relu2 the squared ReLU.
    mlp: Literal["gelu", "gelu_exact", "relu2"]
    bias: bool  # whether projections and layer norms have a bias
    tie_embeddings: bool  # whether the unembedding is the token embedding
    # gpt2: normal 0.02, output projections 0.02 / sqrt(2 N). zero_projections: output projections and unembedding 0.
    init: Literal["gpt2", "zero_projections"]
    n_kv_heads: Size | None = None  # G, key and value heads; divides H; None for H
    d_ff: Size | None = None  # F, width inside the MLP; None for 4 C
    # Probability, in training, of dropping a number of attention weights, a block's two outputs and the embedding.
    dropout: BelowOne = 0.0
    # Period of the slowest turn in tokens, over 2 pi; set for position=rotary, None otherwise.
    rotary_base: PositiveFactor | None = None
    qk_norm: bool = False  # RMS-normalise queries and keys
    attention_scale: PositiveFactor | None = None  # factor on the scores; None for 1 / sqrt(D)
    embedding_norm: bool = False  # normalise the embedding before the first block
    # K, number of previous tokens whose embeddings each position adds, each channel times a learned gain.
    smear: Smeared = 0
    # K, number of previous positions that each input of an MLP adds, each channel times a learned gain.
    mlp_smear: Smeared = 0
    # c in c * tanh(logits / c), in nats; None for plain logits.
    logit_softcap: PositiveFactor | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Raise ValueError unless the heads fit the width, and the rotary table the heads and the context."""
        widths = f"d_model={self.d_model} and n_heads={self.n_heads}"
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model must be a multiple of n_heads, got {widths}")
        if self.n_heads % (self.n_kv_heads or self.n_heads):
            raise ValueError(
                "n_heads must be a multiple of n_kv_heads, "
                f"got n_heads={self.n_heads} and n_kv_heads={self.n_kv_heads}"
            )

        is_rotary = self.position == "rotary"
        if is_rotary != (self.rotary_base is not None):
            raise ValueError(
                "rotary_base must be set when position=rotary and null otherwise, "
                f"got position={self.position} and rotary_base={self.rotary_base}"
            )
        if is_rotary and self.d_head % 2:
            raise ValueError(f"d_model / n_heads must be even when position=rotary, got {widths}")
        if is_rotary and self.context_length * self.d_head > LARGEST_TABLE:
            raise ValueError(
                f"context_length * d_model / n_heads must be at most {LARGEST_TABLE} "
                f"when position=rotary, got context_length={self.context_length}, {widths}"
            )
        return self

    @property
    def d_head(self) -> int:
        """D, width of one head."""
        return self.d_model // self.n_heads

    def with_vocab_size(self, vocab_size: int) -> "GPTConfig":
        """The configuration of a GPT of these settings for a vocabulary of so many tokens."""
        return GPTConfig(**asdict(self), vocab_size=vocab_size)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GPTConfig(ModelSettings):
    """Sizes and alternatives of one GPT; raises as ModelSettings does."""

    vocab_size: Size  # V, token kinds

    @property
    def padded_vocab_size(self) -> int:
        """V rounded up to a multiple of 64: number of rows of the embedding and of the unembedding."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def config_from_file(settings: dict) -> GPTConfig:
    """The GPTConfig of values that a file holds; UserError, in one line, if they make none."""
    try:
        return GPTConfig(**settings)
    except ValidationError as error:
        raise UserError(first_mistake(error)) from None
