"""The sizes and alternatives of a GPT, as numbers and names, which are checked in this module alone.

This module imports no torch, so that a command tells a wrong value before torch is imported.
"""

from dataclasses import asdict, field
from typing import Annotated, Literal, NotRequired, Self

from pydantic import Field, ValidationError, model_validator, with_config
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict  # which pydantic takes before Python 3.12

from gptmini.settings import STRICT, BelowOne, first_mistake
from gptmini.user_error import UserError

VOCAB_MULTIPLE = 64  # tile width at which GPU matrix products run at full speed
# Most numbers of the rotary table, 256 MB in float32. The table is built whole: without a limit, a damaged checkpoint
# that claims a huge context_length would fill the memory.
LARGEST_TABLE = 2**26

# Added to the mean square in a norm, unless norm_eps says otherwise: GPT-2's, and nanochat's.
NORM_EPS = {"layernorm": 1e-5, "rmsnorm": 1e-6}

# Token ids are stored in 32 bits at most, and no other size comes near.
Size = Annotated[int, Field(ge=1, le=2**32)]
# Far beyond any real model. A million layers, typed by mistake, would fill the memory before the first of them is used.
Layers = Annotated[int, Field(ge=1, le=10_000)]
# Each previous token costs a pass over the batch; attention is cheaper beyond 64.
Smeared = Annotated[int, Field(ge=0, le=64)]
PositiveFactor = Annotated[float, Field(gt=0)]


@with_config(STRICT)
class RotaryScaling(TypedDict):
    """How a model whose context was lengthened turns more slowly: as Llama 3 does, or by the factor alone.

    Where the last three are given, pairs that turn fast keep their frequency: see gptmini.attention.rotary_table.
    """

    factor: PositiveFactor  # what frequencies are divided by
    low_freq_factor: NotRequired[PositiveFactor]
    high_freq_factor: NotRequired[PositiveFactor]
    original_context_length: NotRequired[Size]  # tokens, before it was lengthened


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelSettings:
    """Sizes and alternatives of one GPT but for its vocabulary, neutral by default.

    Raises pydantic.ValidationError, a ValueError: a wrong type, range or combination.
    """

    context_length: Size  # T, tokens of a sequence in training, and the longest input
    d_model: Size  # C, width of the residual stream
    n_layers: Layers  # N, blocks
    n_heads: Size  # H, query heads; divides C
    # layernorm has gains and an eps of 1e-5; rmsnorm has no weights, and an eps of 1e-6.
    norm: Literal["layernorm", "rmsnorm"]
    # learned is a vector for each position; with rotary, queries and keys turn.
    position: Literal["learned", "rotary"]
    # gelu is the tanh form of GPT-2, gelu_exact that of nanoGPT, relu2 the squared ReLU, square the square
    # itself, swiglu the gated MLP of Llama.
    mlp: Literal["gelu", "gelu_exact", "relu2", "square", "swiglu"]
    bias: bool  # whether projections and layer norms have a bias
    tie_embeddings: bool  # whether the unembedding is the token embedding
    # gpt2: normal 0.02, output projections 0.02 / sqrt(2 N). zero_projections: output projections and unembedding 0.
    init: Literal["gpt2", "zero_projections"]
    n_kv_heads: Size | None = None  # G, key and value heads; divides H; None for H
    d_head: Size | None = None  # D, width of one head; None for C / H
    d_ff: Size | None = None  # F, width inside the MLP; None for 4 C
    # Whether the projections of attention have a bias; qkv: that of queries, keys and values alone; None as bias.
    attention_bias: bool | Literal["qkv"] | None = None
    norm_gain: bool = False  # whether an rmsnorm has learned gains
    norm_eps: PositiveFactor | None = None  # added to the mean square; None for that of the norm
    # Probability, in training, of dropping a number of attention weights, a block's two outputs and the embedding.
    dropout: BelowOne = 0.0
    # Period of the slowest turn in tokens, over 2 pi; set for position=rotary, None otherwise.
    rotary_base: PositiveFactor | None = None
    # None for the frequencies as they are. A dict has no hash, so the hash of the settings leaves it out.
    rotary_scaling: RotaryScaling | None = field(default=None, hash=False)
    # Longest input in tokens of rotary weights that are trained on a shorter context_length than they came with; None
    # for context_length.
    full_context_length: Size | None = None
    # RMS-normalise queries and keys; gain: with learned gains, and before they turn.
    qk_norm: bool | Literal["gain"] = False
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
        if self.d_head is None and self.d_model % self.n_heads:
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
        if is_rotary and self.head_width % 2:
            raise ValueError(
                f"d_head, which is d_model / n_heads where it is null, must be even when position=rotary, "
                f"got d_head={self.head_width}"
            )
        full = self.full_context_length
        length = "context_length" if full is None else "full_context_length"
        if is_rotary and self.longest_input * self.head_width > LARGEST_TABLE:
            raise ValueError(
                f"{length} * d_head must be at most {LARGEST_TABLE} when position=rotary, "
                f"got {length}={self.longest_input}, d_head={self.head_width}"
            )
        if full is not None and not (is_rotary and full >= self.context_length):
            raise ValueError(
                "full_context_length requires position=rotary and must be at least context_length, "
                f"got full_context_length={full}, context_length={self.context_length}, "
                f"position={self.position}"
            )

        if self.rotary_scaling is not None and len(self.rotary_scaling) not in (1, 4):
            raise ValueError(
                "rotary_scaling must have factor alone, or low_freq_factor, high_freq_factor and "
                f"original_context_length too, got {', '.join(self.rotary_scaling)}"
            )
        return self

    @property
    def longest_input(self) -> int:
        """Positions that the model has: most tokens that it can be given."""
        return self.full_context_length or self.context_length

    @property
    def head_width(self) -> int:
        """D, width of one head."""
        return self.d_head or self.d_model // self.n_heads

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
