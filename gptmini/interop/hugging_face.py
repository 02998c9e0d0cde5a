"""To and from Hugging Face's GPT2LMHeadModel and NanoChatForCausalLM, as plain dicts: transformers is not needed.

Hugging Face's models are "theirs" in this file, and GPT and GPTConfig are "ours".
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from gptmini.checks import UserError, number
from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT, VOCABULARY
from gptmini.model.layers import RMS_NORM_EPS


@dataclass(frozen=True)
class _Architecture:
    """One model type of Hugging Face, translated to GPT and GPTConfig."""

    our_values: dict[str, Any]  # settings of GPTConfig that the model type stands for
    their_values: dict[str, Any]  # their settings that GPT computes; any other value is refused
    sizes: dict[str, str]  # our name of each size to theirs
    block_prefix: str  # their names of a block's weights begin with this and the block's number
    # Our name of each weight to theirs. Several names are parts of our weight, stacked along its first axis.
    weights_outside_blocks: dict[str, tuple[str, ...]]
    weights_of_a_block: dict[str, tuple[str, ...]]


_GPT2 = _Architecture(
    our_values={
        "norm": "layernorm",
        "position": "learned",
        "mlp": "gelu",
        "bias": True,
        "tie_embeddings": True,
        "init": "gpt2",
    },
    their_values={
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    sizes={
        "vocab_size": "vocab_size",
        "context_length": "n_positions",
        "d_model": "n_embd",
        "n_layers": "n_layer",
        "n_heads": "n_head",
        "d_ff": "n_inner",
    },
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
_NANOCHAT = _Architecture(
    our_values={
        "norm": "rmsnorm",
        "position": "rotary",
        "mlp": "relu2",
        "bias": False,
        "tie_embeddings": False,
        "qk_norm": True,
        "embedding_norm": True,
        "init": "zero_projections",
    },
    their_values={
        "hidden_act": "relu2",
        "rms_norm_eps": RMS_NORM_EPS,
        "tie_word_embeddings": False,
        "attention_bias": False,
    },
    sizes={
        "vocab_size": "vocab_size",
        "context_length": "max_position_embeddings",
        "d_model": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads",
        "d_ff": "intermediate_size",
        "logit_softcap": "final_logit_softcapping",
    },
    block_prefix="model.layers.",
    weights_outside_blocks={
        "embedding.weight": ("model.embed_tokens.weight",),
        "unembedding.weight": ("lm_head.weight",),
    },
    weights_of_a_block={
        "attention.qkv.weight": (
            "self_attn.q_proj.weight",
            "self_attn.k_proj.weight",
            "self_attn.v_proj.weight",
        ),
        "attention.output.weight": ("self_attn.o_proj.weight",),
        "mlp.input.weight": ("mlp.fc1.weight",),
        "mlp.output.weight": ("mlp.fc2.weight",),
    },
)
_ARCHITECTURES = {"gpt2": _GPT2, "nanochat": _NANOCHAT}  # by model_type


def from_hugging_face(config: dict, state: dict[str, Tensor]) -> GPT:
    """Build the GPT that computes the same logits as a Hugging Face model of type gpt2 or nanochat.

    Args:
        config: the to_dict() of the Hugging Face model's config.
        state: the state_dict() of the Hugging Face model.

    Raises UserError: another model type, a setting that GPT does not compute, or a missing or misshapen weight.
    """
    kind = config.get("model_type")
    if kind not in _ARCHITECTURES:
        raise UserError(f"model_type must be gpt2 or nanochat, got {kind!r}")

    model = GPT(_our_config(config, kind))
    weights = model.state_dict()
    for name, their_names in _weight_names(kind, model.config.n_layers):
        weight = weights[name]
        # Beyond vocab_size, rows of GPT's weights are padding, which Hugging Face's models do not have.
        n_rows = model.config.vocab_size if name in VOCABULARY else len(weight)
        shape = (n_rows, *weight.shape[1:])
        weight[:n_rows] = _join_parts(name, their_names, state, shape)
    return model


def to_hugging_face(
    model: GPT, *, end_of_text: int | None = None
) -> tuple[dict, dict[str, Tensor]]:
    """Config and state dict of the GPT2LMHeadModel or NanoChatForCausalLM that computes the same logits as a GPT.

    Args:
        model: the GPT to translate.
        end_of_text: id that begins and ends a document, from the model's tokenizer; None if its vocabulary has none, so
            that no token ends a text.

    Returns keyword arguments of the Hugging Face config, with model_type among them, and the state dict.
    Raises UserError: neither model computes what this GPT does; the setting that differs is named.
    """
    config = model.config
    kind = "gpt2" if config.norm == "layernorm" else "nanochat"
    _check_exportable(config, kind)

    state = {}
    weights = model.state_dict()
    for name, their_names in _weight_names(kind, config.n_layers):
        weight = weights[name]
        if name in VOCABULARY:
            weight = weight[: config.vocab_size]  # (V, C), without the rows of padding
        parts = _split_parts(weight, len(their_names), config)
        for their_name, part in zip(their_names, parts, strict=True):
            state[their_name] = _transpose_conv1d(their_name, part).clone()
    if kind == "gpt2":
        state["lm_head.weight"] = state["transformer.wte.weight"]
    return _their_config(config, kind, end_of_text), state


def _our_config(config: dict, kind: str) -> GPTConfig:
    """Translate a Hugging Face config; UserError for an absent size, or a setting that GPT does not compute."""
    architecture = _ARCHITECTURES[kind]
    for name, value in architecture.their_values.items():
        if config.get(name, value) != value:
            raise UserError(
                f"{name} must be {value} for a {kind} that GPT computes, got {config[name]}"
            )
    absent = [name for name in architecture.sizes.values() if name not in config]
    if absent:
        raise UserError(f"the config of a {kind} must have {', '.join(absent)}")

    sizes = {ours: config[theirs] for ours, theirs in architecture.sizes.items()}
    if kind == "gpt2":
        return GPTConfig(**architecture.our_values, **sizes)

    rope = config.get("rope_parameters")
    theta = None
    if isinstance(rope, dict):
        theta = rope.get("rope_theta")
        _check_rope(rope, kind)
    base = number("rope_parameters.rope_theta", theta, above=0)
    return GPTConfig(**architecture.our_values, **sizes, rotary_base=float(base))


def _check_rope(rope: dict, kind: str) -> None:
    """Raise UserError unless rotary positions turn all of a head's dimensions, by angles that nothing rescales."""
    for name, plain in (("rope_type", "default"), ("partial_rotary_factor", 1)):
        value = rope.get(name, plain)
        if value != plain:
            raise UserError(
                f"rope_parameters.{name} must be {plain} for a {kind} that GPT computes, got {value}"
            )


def _their_config(config: GPTConfig, kind: str, end_of_text: int | None) -> dict:
    """Translate a GPTConfig that _check_exportable let pass."""
    architecture = _ARCHITECTURES[kind]
    exported = {theirs: getattr(config, ours) for ours, theirs in architecture.sizes.items()}
    exported.update(architecture.their_values)
    exported["model_type"] = kind

    # The three ids are exported even where they are None: Hugging Face's defaults end a text at an ordinary token.
    exported["bos_token_id"] = end_of_text
    exported["eos_token_id"] = end_of_text
    exported["pad_token_id"] = None

    if kind == "gpt2":
        exported["resid_pdrop"] = config.dropout
        exported["embd_pdrop"] = config.dropout
        exported["attn_pdrop"] = config.dropout
        return exported

    # NanoChat's config has no null that stands for the usual size.
    exported["num_key_value_heads"] = config.n_kv_heads or config.n_heads
    exported["intermediate_size"] = config.d_ff or 4 * config.d_model
    exported["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rotary_base}
    exported["attention_dropout"] = config.dropout
    return exported


def _check_exportable(config: GPTConfig, kind: str) -> None:
    """Raise UserError unless every setting that a model type fixes has the value that the model type stands for."""
    architecture = _ARCHITECTURES[kind]
    # A model type can have any size, dropout and rotary base; first weights no longer matter after training.
    free = {*architecture.sizes, "dropout", "init", "rotary_base"}
    for field in fields(config):
        if field.name in free:
            continue
        value = getattr(config, field.name)
        wanted = architecture.our_values.get(field.name, field.default)
        if value != wanted:
            raise UserError(
                f"{field.name} must be {wanted} to export as {kind}, got {field.name}={value}"
            )


def _weight_names(kind: str, n_layers: int) -> Iterator[tuple[str, list[str]]]:
    """Yield our name of each weight, and the names of the weight or of its parts in the Hugging Face model."""
    architecture = _ARCHITECTURES[kind]
    for name, their_names in architecture.weights_outside_blocks.items():
        yield name, list(their_names)

    for i in range(n_layers):
        prefix = f"{architecture.block_prefix}{i}."
        for name, their_names in architecture.weights_of_a_block.items():
            yield f"blocks.{i}.{name}", [prefix + their_name for their_name in their_names]


def _join_parts(
    name: str,
    their_names: list[str],
    state: dict[str, Tensor],
    shape: tuple[int, ...],
) -> Tensor:
    """Stack the parts of a weight along its first axis; UserError if one is missing or the result is misshapen."""
    parts = []
    for their_name in their_names:
        if their_name in state:
            parts.append(_transpose_conv1d(their_name, state[their_name]))

    joined = None
    if len(parts) == len(their_names):
        with suppress(RuntimeError):  # parts that differ in more than their number of rows
            joined = torch.cat(parts)
    if joined is None or joined.shape != shape:
        got = " and ".join(str(tuple(part.shape)) for part in parts) or "none"
        raise UserError(f"the weight for {name} must be {shape}, got {got}")
    return joined


def _split_parts(weight: Tensor, n_parts: int, config: GPTConfig) -> tuple[Tensor, ...]:
    """Split the fused projection of queries, keys and values into three parts; any other weight is one part."""
    if n_parts == 1:
        return (weight,)
    d_queries = config.n_heads * config.d_head
    d_keys = (config.n_kv_heads or config.n_heads) * config.d_head
    return weight.split([d_queries, d_keys, d_keys])  # (H D, C), (G D, C), (G D, C)


def _transpose_conv1d(their_name: str, weight: Tensor) -> Tensor:
    """Transpose a matrix of GPT-2's blocks, which are Conv1D and store (in, out), to (out, in) or back."""
    is_conv1d = their_name.startswith(_GPT2.block_prefix) and weight.ndim == 2
    return weight.T if is_conv1d else weight
