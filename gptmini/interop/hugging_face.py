"""To and from Hugging Face's GPT2LMHeadModel, NanoChatForCausalLM and ApertusForCausalLM, as plain dicts.

transformers is not needed. Hugging Face's models are "theirs" in this file, and GPT and GPTConfig are "ours".
"""

from typing import Any

import torch
from torch import Tensor

from gptmini.interop.apertus import from_apertus, to_apertus
from gptmini.interop.architectures import (
    ARCHITECTURES,
    Architecture,
    choose_architecture,
)
from gptmini.interop.weights import (
    embedding_name,
    join_parts,
    names_in,
    split_parts,
    transpose_conv1d,
    weight_or_zeros,
)
from gptmini.model.config import GPTConfig, config_from_file
from gptmini.model.gpt import GPT, VOCABULARY, gpt_of_shapes
from gptmini.user_error import UserError

# Another name that transformers has for the tanh form of GELU.
OTHER_NAMES = {"gelu_new": "gelu_pytorch_tanh"}
# Settings that configs of the hub leave out where a model has the usual width inside an MLP.
OPTIONAL = ("n_inner",)
# What a config may say of rotary positions.
ROPE_KEYS = {"rope_type", "rope_theta", "partial_rotary_factor"}


def from_hugging_face(config: dict, state: dict[str, Tensor]) -> GPT:
    """Build the GPT that computes the same logits as a Hugging Face model of type gpt2, nanochat or apertus.

    Args:
        config: the to_dict() of the Hugging Face model's config.
        state: the state_dict() of the Hugging Face model.

    Raises UserError: another model type, a setting that GPT does not compute, or a missing or misshapen weight.
    """
    return gpt_of(our_config(config), state, config["model_type"])


def gpt_of(config: GPTConfig, state: dict[str, Tensor], kind: str) -> GPT:
    """Build the GPT of a config from the weights of a Hugging Face model of a model type.

    Raises UserError: a weight is missing, left over, misshapen, or not finite.
    """
    names = names_in(state, config, kind)
    _check_embedding(config, state, kind)
    if kind == "apertus":
        state = from_apertus(state, config)

    model = gpt_of_shapes(config)
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    weights = {}
    for name, their_names in names.items():
        shape = shapes[name]
        if name not in VOCABULARY:
            weights[name] = join_parts(name, their_names, state, shape).float()
            continue
        # Beyond vocab_size, rows of GPT's weights are padding, which Hugging Face's models do not have.
        rows = join_parts(name, their_names, state, (config.vocab_size, *shape[1:]))
        weights[name] = torch.zeros(shape)
        weights[name][: config.vocab_size] = rows
    model.load_state_dict(weights, assign=True)
    return model


def _check_embedding(config: GPTConfig, state: dict[str, Tensor], kind: str) -> None:
    """Raise UserError unless the embedding has the sizes of a config, before torch builds what a config claims."""
    claimed = (config.vocab_size, config.d_model)
    name = embedding_name(kind)
    found = tuple(state[name].shape)
    if found != claimed:
        raise UserError(f"{name} must be {claimed}, as the config says, got {found}")


def to_hugging_face(
    model: GPT, *, end_of_text: int | None = None, kind: str | None = None
) -> tuple[dict, dict[str, Tensor]]:
    """Config and state dict of the model in transformers that computes the same logits as a GPT.

    Args:
        model: the GPT to translate.
        end_of_text: id that begins and ends a document, from the model's tokenizer; None if its vocabulary has none, so
            that no token ends a text.
        kind: gpt2, nanochat or apertus; None for the most widely known that computes what the GPT does.

    Returns keyword arguments of the Hugging Face config, with model_type among them, and the state dict.
    Raises UserError: no model type, or not the one asked for, computes what this GPT does; the setting that differs is
    named.
    """
    config = model.config
    kind = choose_architecture(config, kind)

    state = {}
    weights = model.state_dict()
    for name, their_names in ARCHITECTURES[kind].weight_names(config):
        weight = weight_or_zeros(weights, name)
        if name in VOCABULARY:
            weight = weight[: config.vocab_size]  # (V, C), without the rows of padding
        parts = split_parts(weight, len(their_names), config)
        for their_name, part in zip(their_names, parts, strict=True):
            state[their_name] = transpose_conv1d(their_name, part).clone()

    if config.tie_embeddings:
        state["lm_head.weight"] = state[embedding_name(kind)]
    if kind == "apertus":
        state = to_apertus(state, config)
    return _their_config(config, kind, end_of_text), state


def our_config(config: dict) -> GPTConfig:
    """Translate a Hugging Face config.

    Raises UserError: another model type, an absent size, or a setting that GPT does not compute.
    """
    kind = config.get("model_type")
    if type(kind) is not str or kind not in ARCHITECTURES:
        raise UserError(f"model_type must be one of {', '.join(ARCHITECTURES)}, got {kind!r}")

    architecture = ARCHITECTURES[kind]
    for name, value in architecture.their_values.items():
        if config.get(name, value) != value:
            raise UserError(
                f"{name} must be {value} for a {kind} that GPT computes, got {config[name]!r}"
            )
    if config.get("quantization_config") is not None:
        raise UserError(f"quantization_config must be null for a {kind} that GPT computes")

    needed = [*architecture.settings.values(), *architecture.needed]
    absent = [name for name in needed if name not in config and name not in OPTIONAL]
    if absent:
        raise UserError(f"the config of a {kind} must have {', '.join(absent)}")

    settings: dict[str, Any] = {
        ours: config.get(theirs) for ours, theirs in architecture.settings.items()
    }
    for name, value in architecture.our_values.items():
        settings[name] = value[0] if isinstance(value, tuple) else value
    settings["mlp"] = _our_activation(config, kind, architecture)
    # transformers ties GPT-2's embeddings unless the config says otherwise, and those of the other two only if it does.
    settings["tie_embeddings"] = config.get("tie_word_embeddings", kind == "gpt2")
    if kind == "gpt2":
        return config_from_file(settings | {"init": "gpt2"})

    if config.get("rope_scaling") is not None:
        raise UserError(f"rope_scaling must be null for a {kind} that GPT computes")
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        raise UserError(f"rope_parameters.rope_theta must be set for a {kind}, got {rope!r:.80}")
    _check_rope(rope, kind)
    return config_from_file(
        settings | {"rotary_base": rope["rope_theta"], "init": "zero_projections"}
    )


def _our_activation(config: dict, kind: str, architecture: Architecture) -> str:
    """Our name of the activation in an MLP; UserError for one that GPT does not compute for this model type."""
    default = next(iter(architecture.activations.values()))
    theirs = config.get(architecture.activation, default)
    for ours, name in architecture.activations.items():
        if theirs in (name, OTHER_NAMES.get(name, name)):
            return ours
    known = " or ".join(architecture.activations.values())
    raise UserError(
        f"{architecture.activation} must be {known} for a {kind} that GPT computes, got {theirs}"
    )


def _check_rope(rope: dict, kind: str) -> None:
    """Raise UserError unless rotary positions turn all of a head's dimensions, by angles that nothing rescales."""
    for name, plain in (("rope_type", "default"), ("partial_rotary_factor", 1)):
        value = rope.get(name, plain)
        if value != plain:
            raise UserError(
                f"rope_parameters.{name} must be {plain} for a {kind} that GPT computes, got {value}"
            )
    others = sorted(str(name) for name in set(rope) - ROPE_KEYS)
    if others:
        raise UserError(
            f"rope_parameters must have no {', '.join(others)} for a {kind} that GPT computes"
        )


def _their_config(config: GPTConfig, kind: str, end_of_text: int | None) -> dict:
    """Translate a GPTConfig that choose_architecture let pass."""
    architecture = ARCHITECTURES[kind]
    exported = {theirs: getattr(config, ours) for ours, theirs in architecture.settings.items()}
    exported.update(architecture.their_values)
    exported["model_type"] = kind
    exported["architectures"] = [architecture.class_name]
    exported[architecture.activation] = architecture.activations[config.mlp]
    exported["tie_word_embeddings"] = config.tie_embeddings

    # The three ids are exported even where they are None: Hugging Face's defaults end a text at an ordinary token.
    exported["bos_token_id"] = end_of_text
    exported["eos_token_id"] = end_of_text
    exported["pad_token_id"] = None

    if kind == "gpt2":
        exported["n_ctx"] = config.context_length  # which llama.cpp's converter and MLX ask for
        exported["resid_pdrop"] = config.dropout
        exported["embd_pdrop"] = config.dropout
        exported["attn_pdrop"] = config.dropout
        return exported

    # The configs of the other two have no null that stands for the usual size.
    exported["num_key_value_heads"] = config.n_kv_heads or config.n_heads
    exported["intermediate_size"] = config.d_ff or 4 * config.d_model
    exported["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rotary_base}
    exported["attention_dropout"] = config.dropout
    if kind == "apertus":
        # With a norm folded into it, the embedding is no longer the unembedding.
        exported["tie_word_embeddings"] = config.tie_embeddings and not config.embedding_norm
        # What MLX asks for.
        exported["rope_theta"] = config.rotary_base
        exported["mlp_bias"] = False
        exported["post_norm"] = False
        exported["qk_norm"] = True
    return exported
