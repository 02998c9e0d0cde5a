"""The configuration of a GPT. All checks of its values are in this module.

This module does not import torch, so that a command can report a wrong value before the slow import of torch.
"""

from dataclasses import asdict, field
from typing import Annotated, Literal, NotRequired, Self

from pydantic import Field, ValidationError, model_validator, with_config
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict  # pydantic requires this version before Python 3.12

from gptmini.settings import STRICT, BelowOne, first_error
from gptmini.system.errors import UserError

VOCAB_MULTIPLE = 64  # GPU matrix products run at full speed if widths are multiples of this number
# Maximum number of elements in the rotary table: 256 MB in float32. The model allocates the entire table. Without
# a limit, a damaged checkpoint with a huge context_length would fill the memory.
LARGEST_TABLE = 2**26

# Defaults of norm_eps. A norm adds this number to the mean square. Sources: GPT-2 (layernorm), nanochat (rmsnorm).
NORM_EPS = {"layernorm": 1e-5, "rmsnorm": 1e-6}

# Token ids use at most 32 bits. All other sizes are much smaller.
Size = Annotated[int, Field(ge=1, le=2**32)]
# This limit is far above any real model. A million layers, given by mistake, would fill the memory.
Layers = Annotated[int, Field(ge=1, le=10_000)]
# Each previous token costs a pass over the batch. Above 64, attention is cheaper.
SmearLength = Annotated[int, Field(ge=0, le=64)]
PositiveFactor = Annotated[float, Field(gt=0)]


@with_config(STRICT)
class RotaryScaling(TypedDict):
    """Scaling of rotary frequencies in a model with a lengthened context.

    If only factor is set, all frequencies are divided by factor. If all four fields are set, high frequencies are kept,
    as in Llama 3: see gptmini.attention.rotary.scale_frequencies.
    """

    factor: PositiveFactor  # divisor of the frequencies
    low_freq_factor: NotRequired[PositiveFactor]
    high_freq_factor: NotRequired[PositiveFactor]
    original_context_length: NotRequired[Size]  # tokens, before the context was lengthened


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelSettings:
    """Configuration of a GPT without the vocabulary size. Optional features are off by default.

    Raises pydantic.ValidationError, a ValueError, if a value has a wrong type or range or contradicts another value.
    """

    # T, tokens per training sequence. T is also the longest input, unless full_context_length is set.
    context_length: Size
    d_model: Size  # C, width of the residual stream
    n_layers: Layers  # N, blocks
    n_heads: Size  # H, query heads; divides C
    # layernorm has gains and an eps of 1e-5. rmsnorm has an eps of 1e-6. It has gains only if norm_gain is set.
    norm: Literal["layernorm", "rmsnorm"]
    # learned: each position has a learned vector. rotary: queries and keys are rotated.
    position: Literal["learned", "rotary"]
    # gelu: the tanh form of GPT-2; gelu_exact: nanoGPT's form; relu2: squared ReLU; square: x^2; swiglu: Llama's gated
    # MLP.
    mlp: Literal["gelu", "gelu_exact", "relu2", "square", "swiglu"]
    bias: bool  # whether projections and layer norms have a bias
    tie_embeddings: bool  # whether the unembedding is the token embedding
    # gpt2: normal 0.02, output projections 0.02 / sqrt(2 N). zero_projections: output projections and unembedding 0.
    init: Literal["gpt2", "zero_projections"]
    n_kv_heads: Size | None = None  # G, key and value heads; divides H; None: H
    d_head: Size | None = None  # D, width of one head; None: C / H
    d_ff: Size | None = None  # F, width inside the MLP; None: 4 C
    # Whether attention projections have a bias. qkv: only queries, keys and values have a bias. None: same as bias.
    attention_bias: bool | Literal["qkv"] | None = None
    norm_gain: bool = False  # whether rmsnorm has learned gains
    norm_eps: PositiveFactor | None = None  # added to the mean square; None: see NORM_EPS
    # Dropout probability in training. Dropout applies to both outputs of a block and to the embedding.
    dropout: BelowOne = 0.0
    # Period of the slowest rotation in tokens, divided by 2 pi; required for position=rotary, otherwise None.
    rotary_base: PositiveFactor | None = None
    # None: the frequencies are not scaled. A dict cannot be hashed, so the hash of the settings leaves this field out.
    rotary_scaling: RotaryScaling | None = field(default=None, hash=False)
    # Longest input in tokens, if rotary weights are fine-tuned with a context_length that is shorter than their
    # original context; None: context_length.
    full_context_length: Size | None = None
    # true: RMS-normalise queries and keys after the rotation. gain: before the rotation, with learned gains.
    qk_norm: bool | Literal["gain"] = False
    attention_scale: PositiveFactor | None = None  # factor on the scores; None: 1 / sqrt(D)
    embedding_norm: bool = False  # normalise the embedding before the first block
    # K: each position adds the embeddings of the K previous tokens, with a learned gain per channel.
    smear: SmearLength = 0
    # K: in front of each MLP, each position adds the K previous positions, with a learned gain per channel.
    mlp_smear: SmearLength = 0
    # c in c * tanh(logits / c), in nats. None: plain logits.
    logit_softcap: PositiveFactor | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
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
                "d_head (default: d_model / n_heads) must be even when position=rotary, "
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
                "rotary_scaling must have only factor, or factor, low_freq_factor, high_freq_factor "
                f"and original_context_length, got {', '.join(self.rotary_scaling)}"
            )
        return self

    @property
    def longest_input(self) -> int:
        """The maximum number of input tokens."""
        return self.full_context_length or self.context_length

    @property
    def head_width(self) -> int:
        """The width D of one head."""
        return self.d_head or self.d_model // self.n_heads

    def with_vocab_size(self, vocab_size: int) -> "GPTConfig":
        """Return these settings with a vocabulary size."""
        return GPTConfig(**asdict(self), vocab_size=vocab_size)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GPTConfig(ModelSettings):
    """Configuration of a GPT. Raises the errors of ModelSettings."""

    vocab_size: Size  # V, number of different tokens

    @property
    def padded_vocab_size(self) -> int:
        """The number of rows of the embedding and of the unembedding. It is V rounded up to a multiple of 64."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def config_from_file(settings: dict) -> GPTConfig:
    """Return the GPTConfig that a file stores. Raise a one-line UserError if the values are invalid."""
    try:
        return GPTConfig(**settings)
    except ValidationError as error:
        raise UserError(first_error(error)) from None
