"""Convert between GPT and Hugging Face models that compute the same logits.

Hugging Face models are given as plain dicts. Therefore, transformers is not needed. "Their" names come from Hugging
Face, and "our" names come from GPT and GPTConfig.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gptmini.data.paths import names_of
from gptmini.interop import llama
from gptmini.interop.architectures import (
    ARCHITECTURES,
    Architecture,
    check_setting,
    choose_architecture,
    is_conv1d,
    known_model_type,
    refuse,
)
from gptmini.model.config import GPTConfig, config_from_file
from gptmini.model.gpt import GPT, VOCABULARY, meta_gpt
from gptmini.user_error import UserError

# transformers has two names for the tanh form of GELU.
OTHER_NAMES = {"gelu_new": "gelu_pytorch_tanh"}
# For each model type, the settings that a config may omit. The default of n_inner is 4 times the width of the model. In
# a Llama, the default of num_key_value_heads is the number of query heads. Other Llama-style models have defaults that
# do not follow from the other settings.
OPTIONAL = {"gpt2": ("n_inner",), "llama": ("num_key_value_heads",)}
NEVER_SET = ("quantization_config", "rope_scaling")
# Keys and values that rope_parameters may have in addition to rope_theta. These values do not change the model.
PLAIN_ROPE = {"rope_type": "default", "partial_rotary_factor": 1}
# Map our names of settings that are not in Architecture.settings to their names. Error messages use their names.
OUR_NAMES = {
    "tie_embeddings": "tie_word_embeddings",
    "d_head": "head_dim",
    "norm_eps": "rms_norm_eps",
    "bias": "mlp_bias",
    "rotary_base": "rope_theta",
    "rotary_scaling": "rope_scaling",
    "original_context_length": "original_max_position_embeddings",
}
SHOWN = 5  # maximum number of weight names that an error message shows


def from_hugging_face(config: dict, state: dict[str, Tensor]) -> GPT:
    """Build the GPT that computes the same logits as a Hugging Face model of a type in ARCHITECTURES.

    Args:
        config: the config of the Hugging Face model, as returned by to_dict().
        state: the weights of the Hugging Face model, as returned by state_dict().

    Raises UserError if the model type is unknown, if GPT does not support a setting, or if a weight is missing or has
    the wrong shape.
    """
    return build_gpt(to_gpt_config(config), state, config["model_type"])


def build_gpt(config: GPTConfig, state: dict[str, Tensor], kind: str) -> GPT:
    """Build the GPT of a config from the weights of a Hugging Face model of type `kind`.

    Raises UserError if a weight is missing, unexpected or has the wrong shape.
    """
    # Check the number of layers before weight names are made. Otherwise, a config with millions of layers would make
    # millions of names.
    if config.n_layers > len(state):
        raise UserError(
            f"the config has {config.n_layers} layers, but the weights have only {len(state)} tensors"
        )
    # In GPT, the rows of a weight after vocab_size are padding. Hugging Face models do not have these rows.
    n_padding = config.padded_vocab_size - config.vocab_size

    weights = {}
    try:
        model = meta_gpt(config)
        names = _names_in(state, model, kind)
        if kind in llama.KINDS:
            state = llama.swap_halves(state, config)
        for name, their_names in names.items():
            parts = [_transpose_conv1d(part, state[part]) for part in their_names]
            weights[name] = torch.cat(parts).float()
            if name in VOCABULARY:
                weights[name] = F.pad(weights[name], (0, 0, 0, n_padding))
        model.load_state_dict(weights, assign=True)
    except (RuntimeError, IndexError) as error:  # torch raises these errors if shapes do not match
        reason = " ".join(str(error).split())
        raise UserError(f"the shapes of the weights do not match the config: {reason}") from None
    return model


def _names_in(state: dict[str, Tensor], model: GPT, kind: str) -> dict[str, list[str]]:
    """Return a dict that maps our name of each weight to the names of the parts of this weight in a state.

    Raises UserError if a weight is missing or unexpected.
    """
    config = model.config
    ours = model.state_dict()
    names = dict(ARCHITECTURES[kind].weight_names(config))
    names = {name: theirs for name, theirs in names.items() if name in ours}
    wanted = {their_name for their_names in names.values() for their_name in their_names}

    # Some files contain a tied embedding twice: under the name of the embedding, and under the name of the
    # unembedding.
    head, embedding = "lm_head.weight", _embedding_name(kind)
    is_twice = config.tie_embeddings and {head, embedding} <= set(state)
    if is_twice and torch.equal(state[head], state[embedding]):
        wanted.add(head)

    missing = sorted(wanted - set(state))
    unexpected = sorted(set(state) - wanted)
    if missing or unexpected:
        raise UserError(
            f"the weights must match a model of type {kind}; missing weights: {names_of(missing, SHOWN) or 'none'}; "
            f"unexpected weights: {names_of(unexpected, SHOWN) or 'none'}"
        )
    return names


def to_hugging_face(model: GPT, *, kind: str | None = None) -> tuple[dict, dict[str, Tensor]]:
    """Return the config and state dict of the transformers model that computes the same logits as a GPT.

    Args:
        model: the GPT.
        kind: the model type, a key of ARCHITECTURES. None for the most widely known type that computes the same
            logits.

    The config contains keyword arguments of the Hugging Face config. The config includes model_type, but not the
    special ids. Raises UserError if a model of this type would not compute the same logits as the GPT. The message
    names the setting that differs.
    """
    config = model.config
    kind = choose_architecture(config, kind)

    state = {}
    weights = model.state_dict()
    for name, their_names in ARCHITECTURES[kind].weight_names(config):
        if name not in weights and kind in llama.KINDS:
            continue  # this bias or gain is optional in this model type
        weight = _weight_or_zeros(weights, name)
        if name in VOCABULARY:
            weight = weight[: config.vocab_size]  # (V, C); removes the rows of padding
        parts = (weight,)
        if len(their_names) == 3:  # queries, keys and values: (H D, C), (G D, C), (G D, C)
            d_queries = config.n_heads * config.head_width
            d_keys = (config.n_kv_heads or config.n_heads) * config.head_width
            parts = weight.split([d_queries, d_keys, d_keys])
        for their_name, part in zip(their_names, parts, strict=True):
            state[their_name] = _transpose_conv1d(their_name, part).clone()

    if config.tie_embeddings:
        state["lm_head.weight"] = state[_embedding_name(kind)]
    if kind in llama.KINDS:
        state = llama.swap_halves(state, config)
    return _their_config(config, kind), state


def _embedding_name(kind: str) -> str:
    """Return the name that Hugging Face models of type `kind` have for the token embedding."""
    return ARCHITECTURES[kind].weights_outside_blocks["embedding.weight"][0]


def _weight_or_zeros(weights: dict[str, Tensor], name: str) -> Tensor:
    """Return a weight of the GPT. If a bias is missing, return zeros: one zero for each row of the weight matrix."""
    if name in weights:
        return weights[name]
    weight = weights[f"{name.removesuffix('.bias')}.weight"]
    return weight.new_zeros(len(weight))


def _transpose_conv1d(their_name: str, weight: Tensor) -> Tensor:
    """Transpose the weight of a Conv1D in GPT-2, (in, out), to (out, in) or back. Return other weights unchanged."""
    return weight.T if is_conv1d(their_name, weight.ndim) else weight


def to_gpt_config(config: dict) -> GPTConfig:
    """Translate a Hugging Face config to GPTConfig.

    Raises UserError if the model type is unknown, if a size is missing, or if GPT does not support a setting.
    """
    kind = known_model_type(config.get("model_type"))
    architecture = ARCHITECTURES[kind]
    optional = OPTIONAL.get(kind, ())
    needed = [name for name in architecture.settings.values() if name not in optional]
    absent = [name for name in needed if name not in config]
    if absent:
        raise UserError(f"the config of a model of type {kind} must have {', '.join(absent)}")
    never_set = ("quantization_config",) if kind in llama.KINDS else NEVER_SET
    for name, value in {**architecture.their_values, **dict.fromkeys(never_set)}.items():
        check_setting(config, kind, name, value)

    settings: dict[str, Any] = {
        ours: config.get(theirs) for ours, theirs in architecture.settings.items()
    }
    for name, value in architecture.our_values.items():
        settings[name] = value[0] if isinstance(value, tuple) else value
    settings["mlp"] = _our_activation(config, kind, architecture)
    settings["init"] = "zero_projections" if kind == "nanochat" else "gpt2"
    # If tie_word_embeddings is missing, transformers ties the embeddings only in GPT-2, not in other models.
    settings["tie_embeddings"] = config.get("tie_word_embeddings", kind == "gpt2")
    if kind in llama.KINDS:
        settings |= llama.settings_of(config, kind)
    elif kind != "gpt2":
        settings["rotary_base"] = _rotary_base(config.get("rope_parameters"), kind)
    try:
        return config_from_file(settings)
    except UserError as error:
        names = OUR_NAMES | architecture.settings
        if not config.get("rope_scaling"):
            names["rotary_scaling"] = "rope_parameters"
        raise UserError(rename_settings(str(error), names)) from None


def rename_settings(sentence: str, names: Mapping[str, str]) -> str:
    """Replace our names of settings in an error message of GPTConfig with the names in a file."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), sentence)


def _rotary_base(rope: object, kind: str) -> object:
    """Return the base of the rotary positions. Raises UserError if the rotary positions are partial or scaled."""
    values = rope if isinstance(rope, dict) else {}
    others = {name: value for name, value in values.items() if PLAIN_ROPE.get(name) != value}
    base = others.pop("rope_theta", None)
    if base is None or others:
        refuse("rope_parameters", "a rope_theta without other settings", kind, rope)
    return base


def _our_activation(config: dict, kind: str, architecture: Architecture) -> str:
    """Return our name of the activation in the MLP.

    Raises UserError if GPT does not support this activation for models of this type.
    """
    default = next(iter(architecture.activations.values()))
    theirs = config.get(architecture.activation, default)
    for ours, name in architecture.activations.items():
        if theirs in (name, OTHER_NAMES.get(name, name)):
            return ours
    refuse(architecture.activation, " or ".join(architecture.activations.values()), kind, theirs)


def _their_config(config: GPTConfig, kind: str) -> dict:
    """Translate a GPTConfig to their config. choose_architecture must have accepted the GPTConfig."""
    architecture = ARCHITECTURES[kind]
    exported = {theirs: getattr(config, ours) for ours, theirs in architecture.settings.items()}
    exported.update(architecture.their_values)
    exported["model_type"] = kind
    exported["architectures"] = [architecture.class_name]
    exported[architecture.activation] = architecture.activations[config.mlp]
    exported["tie_word_embeddings"] = config.tie_embeddings

    if kind == "gpt2":
        exported["n_ctx"] = config.context_length  # required by llama.cpp's converter and MLX
        exported["resid_pdrop"] = config.dropout
        exported["embd_pdrop"] = config.dropout
        exported["attn_pdrop"] = config.dropout
        return exported

    # The imported model may support longer sequences than training uses.
    exported["max_position_embeddings"] = config.longest_input
    # In the configs of the other model types, null does not mean the default size.
    exported["num_key_value_heads"] = config.n_kv_heads or config.n_heads
    exported["intermediate_size"] = config.d_ff or 4 * config.d_model
    exported["attention_dropout"] = config.dropout
    if kind in llama.KINDS:
        return exported | llama.their_settings(config, kind)
    exported["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rotary_base}
    return exported
