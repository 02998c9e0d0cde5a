"""Tables that map the Hugging Face models GPT-2, NanoChat, Llama, Mistral, Qwen 2 and Qwen 3 to GPT."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from gptmini.model import NORM_EPS, GPTConfig
from gptmini.system.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model type of Hugging Face. The fields describe how the model type maps to GPT and GPTConfig."""

    class_name: str  # name of the class in transformers
    our_values: dict[str, Any]  # GPTConfig settings that the model type fixes
    their_values: dict[str, Any]  # their settings that must have these values
    settings: dict[str, str]  # settings with any value; maps our name to their name
    # More settings of GPTConfig that may have any value. llama.py translates these settings.
    any_value: tuple[str, ...] = ()
    activation: str  # their name of the setting for the MLP's activation
    activations: dict[str, str]  # allowed activations; maps our name to their name
    block_prefix: str  # weight names in a block start with this prefix and the block's index
    # Map our name of each weight to their names. If there are several names, they belong to parts of our weight. These
    # parts are stacked along the first axis.
    weights_outside_blocks: dict[str, tuple[str, ...]]
    weights_of_a_block: dict[str, tuple[str, ...]]

    def weight_names(self, config: GPTConfig) -> Iterator[tuple[str, list[str]]]:
        """Yield our name of each weight of a model, and their names of this weight or of the parts of this weight."""
        for name, their_names in self.weights_outside_blocks.items():
            yield name, list(their_names)
        if not config.tie_embeddings:
            yield "unembedding.weight", ["lm_head.weight"]

        for i in range(config.n_layers):
            prefix = f"{self.block_prefix}{i}."
            for name, their_names in self.weights_of_a_block.items():
                yield f"blocks.{i}.{name}", [prefix + their_name for their_name in their_names]

    def check_computes(self, config: GPTConfig, kind: str) -> None:
        """Raise UserError unless the config has the fixed value of each setting that the model type fixes."""
        # The setting 'init' may have any value, because initial weights no longer matter after training.
        free = {"dropout", "full_context_length", "init", "mlp", "rotary_base", "tie_embeddings"}
        free |= {*self.settings, *self.any_value}
        for field in fields(config):
            if field.name in free:
                continue

            value = getattr(config, field.name)
            if field.name == "n_kv_heads" and value == config.n_heads:
                continue  # this value has the same meaning as None

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
        # A model without biases is exported with zero biases.
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

_NANOCHAT = Architecture(
    class_name="NanoChatForCausalLM",
    our_values={
        "norm": "rmsnorm",
        "position": "rotary",
        "bias": False,
        "qk_norm": True,
        "embedding_norm": True,
    },
    their_values={"rms_norm_eps": NORM_EPS["rmsnorm"], "attention_bias": False},
    settings=_ROTARY_SETTINGS | {"logit_softcap": "final_logit_softcapping"},
    activation="hidden_act",
    activations={"relu2": "relu2"},
    block_prefix="model.layers.",
    weights_outside_blocks={"embedding.weight": ("model.embed_tokens.weight",)},
    weights_of_a_block={
        "attention.qkv.weight": _QKV,
        "attention.output.weight": ("self_attn.o_proj.weight",),
        "mlp.input.weight": ("mlp.fc1.weight",),
        "mlp.output.weight": ("mlp.fc2.weight",),
    },
)


_LLAMA_BLOCK: dict[str, tuple[str, ...]] = {
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
}


def _llama_style(class_name: str, **our_values: Any) -> Architecture:
    """Return a Llama-style architecture. The module llama handles the other differences in settings and weights."""
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
        weights_of_a_block=_LLAMA_BLOCK,
    )


# The keys are the values that model_type may have.
ARCHITECTURES = {
    "gpt2": _GPT2,
    "llama": _llama_style(
        "LlamaForCausalLM", bias=(False, True), attention_bias=(None, False, True)
    ),
    "mistral": _llama_style("MistralForCausalLM", bias=False, attention_bias=(None, False)),
    "qwen2": _llama_style("Qwen2ForCausalLM", bias=False, attention_bias="qkv"),
    "qwen3": _llama_style(
        "Qwen3ForCausalLM", bias=False, attention_bias=(None, False, True), qk_norm="gain"
    ),
    "nanochat": _NANOCHAT,
}


def known_model_type(kind: object) -> str:
    """Return a model type. Raises UserError unless the model type is in ARCHITECTURES."""
    if type(kind) is not str or kind not in ARCHITECTURES:
        raise UserError(f"model_type must be one of {', '.join(ARCHITECTURES)}, got {kind!r}")
    return kind


def check_setting(config: dict, kind: str, name: str, value: object) -> None:
    """Raise UserError if a setting of their config is present and does not have the given value."""
    if config.get(name, value) != value:
        refuse(name, value, kind, config[name])


def refuse(name: str, wanted: object, kind: str, got: object) -> NoReturn:
    """Raise the UserError for a setting of their config that GPT does not support."""
    raise UserError(f"{name} must be {wanted} to import a model of type {kind}, got {got!r:.80}")


def choose_architecture(config: GPTConfig, kind: str | None = None) -> str:
    """Return kind, or the most widely known model type that computes the same logits as a GPT.

    Raises UserError with the setting that differs if a model of this type would not compute the same logits.
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
