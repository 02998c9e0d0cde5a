"""The models of Hugging Face that compute what a GPT computes, as tables of names.

They are GPT-2, NanoChat, and those of Llama's form: Llama, Mistral, Qwen 2 and Qwen 3.

Hugging Face's models are "theirs" in this package, and GPT and GPTConfig are "ours".
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from gptmini.model.config import GPTConfig
from gptmini.model.layers import RMS_NORM_EPS
from gptmini.user_error import UserError


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One model type of Hugging Face, translated to GPT and GPTConfig."""

    class_name: str  # of the class in transformers
    our_values: dict[str, Any]  # settings of GPTConfig that the model type stands for
    their_values: dict[str, Any]  # their settings that GPT computes; any other value is refused
    settings: dict[str, str]  # our name of each setting that may have any value, to theirs
    any_value: tuple[str, ...] = ()  # settings of GPTConfig that are translated one by one
    activation: str  # their name of the setting for the activation in an MLP
    activations: dict[str, str]  # our name of each activation that they can have, to theirs
    block_prefix: str  # their names of a block's weights begin with this and the block's number
    # Our name of each weight to theirs. Several names are parts of our weight, stacked along its first axis.
    weights_outside_blocks: dict[str, tuple[str, ...]]
    weights_of_a_block: dict[str, tuple[str, ...]]

    def weight_names(self, config: GPTConfig) -> Iterator[tuple[str, list[str]]]:
        """Yield our name of each weight of a model, and the names of the weight or of its parts in theirs."""
        for name, their_names in self.weights_outside_blocks.items():
            yield name, list(their_names)
        if not config.tie_embeddings:
            yield "unembedding.weight", ["lm_head.weight"]

        for i in range(config.n_layers):
            prefix = f"{self.block_prefix}{i}."
            for name, their_names in self.weights_of_a_block.items():
                yield f"blocks.{i}.{name}", [prefix + their_name for their_name in their_names]

    def check_computes(self, config: GPTConfig, kind: str) -> None:
        """Raise UserError unless every setting that the model type fixes has the value that it stands for."""
        # First weights no longer matter after training.
        free = {*self.settings, *self.any_value, "full_context_length"}
        free |= {"dropout", "init", "mlp", "rotary_base", "tie_embeddings"}
        for field in fields(config):
            if field.name in free:
                continue

            value = getattr(config, field.name)
            if field.name == "n_kv_heads" and value == config.n_heads:
                continue  # as where it is None

            wanted = self.our_values.get(field.name, field.default)
            allowed = wanted if isinstance(wanted, tuple) else (wanted,)
            if value not in allowed:
                raise UserError(
                    f"{field.name} must be {allowed[0]} to export as {kind}, got {field.name}={value}"
                )
        if config.mlp not in self.activations:
            names = " or ".join(self.activations)
            raise UserError(f"mlp must be {names} to export as {kind}, got mlp={config.mlp}")


_GPT2 = Architecture(
    class_name="GPT2LMHeadModel",
    our_values={
        "norm": "layernorm",
        "position": "learned",
        # A model without biases is exported with biases of zero.
        "bias": (True, False),
    },
    their_values={
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    settings={
        "vocab_size": "vocab_size",
        "context_length": "n_positions",
        "d_model": "n_embd",
        "n_layers": "n_layer",
        "n_heads": "n_head",
        "d_ff": "n_inner",
    },
    activation="activation_function",
    activations={"gelu": "gelu_new", "gelu_exact": "gelu"},
    block_prefix="transformer.h.",
    weights_outside_blocks={
        "embedding.weight": ("transformer.wte.weight",),
        "position_embedding.weight": ("transformer.wpe.weight",),
        "norm.weight": ("transformer.ln_f.weight",),
        "norm.bias": ("transformer.ln_f.bias",),
    },
    weights_of_a_block={
        "attention_norm.weight": ("ln_1.weight",),
        "attention_norm.bias": ("ln_1.bias",),
        "attention.qkv.weight": ("attn.c_attn.weight",),
        "attention.qkv.bias": ("attn.c_attn.bias",),
        "attention.output.weight": ("attn.c_proj.weight",),
        "attention.output.bias": ("attn.c_proj.bias",),
        "mlp_norm.weight": ("ln_2.weight",),
        "mlp_norm.bias": ("ln_2.bias",),
        "mlp.input.weight": ("mlp.c_fc.weight",),
        "mlp.input.bias": ("mlp.c_fc.bias",),
        "mlp.output.weight": ("mlp.c_proj.weight",),
        "mlp.output.bias": ("mlp.c_proj.bias",),
    },
)

_ROTARY_SETTINGS = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "d_ff": "intermediate_size",
}
_QKV = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
_ROTARY_ATTENTION = {
    "attention.qkv.weight": _QKV,
    "attention.output.weight": ("self_attn.o_proj.weight",),
}

_NANOCHAT = Architecture(
    class_name="NanoChatForCausalLM",
    our_values={
        "norm": "rmsnorm",
        "position": "rotary",
        "bias": False,
        "qk_norm": True,
        "embedding_norm": True,
    },
    their_values={"rms_norm_eps": RMS_NORM_EPS, "attention_bias": False},
    settings=_ROTARY_SETTINGS | {"logit_softcap": "final_logit_softcapping"},
    activation="hidden_act",
    activations={"relu2": "relu2"},
    block_prefix="model.layers.",
    weights_outside_blocks={"embedding.weight": ("model.embed_tokens.weight",)},
    weights_of_a_block={
        **_ROTARY_ATTENTION,
        "mlp.input.weight": ("mlp.fc1.weight",),
        "mlp.output.weight": ("mlp.fc2.weight",),
    },
)


def _of_llamas_form(class_name: str, **our_values: Any) -> Architecture:
    """One of the models of Llama's form; the file llama.py says how their settings and weights differ from ours."""
    return Architecture(
        class_name=class_name,
        our_values={"norm": "rmsnorm", "norm_gain": True, "position": "rotary", **our_values},
        their_values={},
        settings=_ROTARY_SETTINGS,
        any_value=("d_head", "norm_eps", "rotary_scaling"),
        activation="hidden_act",
        activations={"swiglu": "silu"},
        block_prefix="model.layers.",
        weights_outside_blocks={
            "embedding.weight": ("model.embed_tokens.weight",),
            "norm.weight": ("model.norm.weight",),
        },
        weights_of_a_block={
            "attention_norm.weight": ("input_layernorm.weight",),
            "attention.qkv.weight": _QKV,
            "attention.qkv.bias": tuple(name.replace("weight", "bias") for name in _QKV),
            "attention.query_gain": ("self_attn.q_norm.weight",),
            "attention.key_gain": ("self_attn.k_norm.weight",),
            "attention.output.weight": ("self_attn.o_proj.weight",),
            "attention.output.bias": ("self_attn.o_proj.bias",),
            "mlp_norm.weight": ("post_attention_layernorm.weight",),
            "mlp.gate.weight": ("mlp.gate_proj.weight",),
            "mlp.gate.bias": ("mlp.gate_proj.bias",),
            "mlp.input.weight": ("mlp.up_proj.weight",),
            "mlp.input.bias": ("mlp.up_proj.bias",),
            "mlp.output.weight": ("mlp.down_proj.weight",),
            "mlp.output.bias": ("mlp.down_proj.bias",),
        },
    )


_LLAMA = _of_llamas_form("LlamaForCausalLM", bias=(False, True), attention_bias=(None, False, True))
_MISTRAL = _of_llamas_form("MistralForCausalLM", bias=False, attention_bias=(None, False))
_QWEN2 = _of_llamas_form("Qwen2ForCausalLM", bias=False, attention_bias="qkv")
_QWEN3 = _of_llamas_form(
    "Qwen3ForCausalLM", bias=False, attention_bias=(None, False, True), qk_norm="gain"
)


def is_conv1d(name: str, n_axes: int) -> bool:
    """Whether a weight of this name in transformers is a matrix of GPT-2's blocks: a Conv1D, stored as (in, out)."""
    return name.startswith(_GPT2.block_prefix) and n_axes == 2


# By their model_type.
ARCHITECTURES = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "nanochat": _NANOCHAT,
}


def known_model_type(kind: object) -> str:
    """A model type; UserError unless it is one of ARCHITECTURES."""
    if kind == "apertus":  # which earlier versions of gptmini exported
        raise UserError(
            "model_type apertus is no longer supported; use the run that the model was exported from"
        )
    if type(kind) is not str or kind not in ARCHITECTURES:
        raise UserError(f"model_type must be one of {', '.join(ARCHITECTURES)}, got {kind!r}")
    return kind


def check_setting(config: dict, kind: str, name: str, value: object) -> None:
    """Raise UserError unless a setting of their config, which may be absent, has a value."""
    if config.get(name, value) != value:
        refuse(name, value, kind, config[name])


def refuse(name: str, wanted: object, kind: str, got: object) -> NoReturn:
    """Raise the UserError for a setting of their config that GPT does not compute."""
    raise UserError(
        f"{name} must be {wanted} in a model of type {kind} that GPT computes, got {got!r:.80}"
    )


def choose_architecture(config: GPTConfig, kind: str | None = None) -> str:
    """The model type to export a GPT as: the one asked for, or the most widely known that computes what the GPT does.

    Raises UserError: no model type, or not the one asked for, does; the setting that differs is named.
    """
    if kind is not None:
        kind = known_model_type(kind)
    elif config.norm == "layernorm":
        kind = "gpt2"
    elif config.mlp != "swiglu":
        kind = "nanochat"
    elif config.qk_norm:
        kind = "qwen3"
    else:
        kind = "qwen2" if config.attention_bias == "qkv" else "llama"
    ARCHITECTURES[kind].check_computes(config, kind)
    return kind
