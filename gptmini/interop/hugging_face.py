"""To and from the models of Hugging Face that compute what a GPT computes, as plain dicts.

transformers is not needed. Hugging Face's models are "theirs" in this file, and GPT and GPTConfig are "ours".
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
from gptmini.model.gpt import GPT, VOCABULARY, gpt_of_shapes
from gptmini.user_error import UserError

# Another name that transformers has for the tanh form of GELU.
OTHER_NAMES = {"gelu_new": "gelu_pytorch_tanh"}
# Settings that a config may leave out, by model type: GPT-2's usual width inside an MLP, and in a Llama as many heads
# of keys and values as of queries. The others of Llama's form have a number there that does not follow from the rest.
OPTIONAL = {"gpt2": ("n_inner",), "llama": ("num_key_value_heads",)}
NEVER_SET = ("quantization_config", "rope_scaling")
# What rope_parameters may say besides their base, because it changes nothing.
PLAIN_ROPE = {"rope_type": "default", "partial_rotary_factor": 1}
# Their names of our settings that are translated one by one.
OUR_NAMES = {
    "tie_embeddings": "tie_word_embeddings",
    "d_head": "head_dim",
    "norm_eps": "rms_norm_eps",
    "bias": "mlp_bias",
    "rotary_base": "rope_theta",
    "rotary_scaling": "rope_scaling",
    "original_context_length": "original_max_position_embeddings",
}
SHOWN = 5  # names that an error gives


def from_hugging_face(config: dict, state: dict[str, Tensor]) -> GPT:
    """Build the GPT that computes the same logits as a Hugging Face model of a type in ARCHITECTURES.

    Args:
        config: the to_dict() of the Hugging Face model's config.
        state: the state_dict() of the Hugging Face model.

    Raises UserError: another model type, a setting that GPT does not compute, or a missing or misshapen weight.
    """
    return gpt_of(our_config(config), state, config["model_type"])


def gpt_of(config: GPTConfig, state: dict[str, Tensor], kind: str) -> GPT:
    """Build the GPT of a config from the weights of a Hugging Face model of a model type.

    Raises UserError: a weight is missing, left over or misshapen.
    """
    # Before a config that claims millions of layers makes millions of names.
    if config.n_layers > len(state):
        raise UserError(
            f"the config claims {config.n_layers} layers, and there are {len(state)} tensors in all"
        )
    # Beyond vocab_size, rows of GPT's weights are padding, which Hugging Face's models do not have.
    n_padding = config.padded_vocab_size - config.vocab_size

    weights = {}
    try:
        model = gpt_of_shapes(config)
        names = _names_in(state, model, kind)
        if kind in llama.KINDS:
            state = llama.turned(state, config)
        for name, their_names in names.items():
            parts = [_transpose_conv1d(part, state[part]) for part in their_names]
            weights[name] = torch.cat(parts).float()
            if name in VOCABULARY:
                weights[name] = F.pad(weights[name], (0, 0, 0, n_padding))
        model.load_state_dict(weights, assign=True)
    except (RuntimeError, IndexError) as error:  # as torch says that shapes do not fit
        reason = " ".join(str(error).split())
        raise UserError(f"the weights must have the shapes of the config: {reason}") from None
    return model


def _names_in(state: dict[str, Tensor], model: GPT, kind: str) -> dict[str, list[str]]:
    """Our name of each weight, and the names of its parts in a state; UserError unless these are all there is."""
    config = model.config
    ours = model.state_dict()
    names = dict(ARCHITECTURES[kind].weight_names(config))
    names = {name: theirs for name, theirs in names.items() if name in ours}
    wanted = {their_name for their_names in names.values() for their_name in their_names}

    # Some files hold a tied embedding under its second name too.
    head, embedding = "lm_head.weight", _embedding_name(kind)
    is_twice = config.tie_embeddings and {head, embedding} <= set(state)
    if is_twice and torch.equal(state[head], state[embedding]):
        wanted.add(head)

    missing = sorted(wanted - set(state))
    left_over = sorted(set(state) - wanted)
    if missing or left_over:
        raise UserError(
            f"the weights must be those of a model of type {kind} that GPT computes; missing: "
            f"{names_of(missing, SHOWN) or 'none'}; left over: {names_of(left_over, SHOWN) or 'none'}"
        )
    return names


def to_hugging_face(model: GPT, *, kind: str | None = None) -> tuple[dict, dict[str, Tensor]]:
    """Config and state dict of the model in transformers that computes the same logits as a GPT.

    Args:
        model: the GPT.
        kind: a key of ARCHITECTURES; None for the most widely known that computes what the GPT does.

    Returns keyword arguments of the Hugging Face config, with model_type among them and without the ids around a text,
    and the state dict.
    Raises UserError: no model type, or not the one asked for, computes what this GPT does; the setting that differs is
    named.
    """
    config = model.config
    kind = choose_architecture(config, kind)

    state = {}
    weights = model.state_dict()
    for name, their_names in ARCHITECTURES[kind].weight_names(config):
        if name not in weights and kind in llama.KINDS:
            continue  # a bias or a gain that not every model of this type has
        weight = _weight_or_zeros(weights, name)
        if name in VOCABULARY:
            weight = weight[: config.vocab_size]  # (V, C), without the rows of padding
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
        state = llama.turned(state, config)
    return _their_config(config, kind), state


def _embedding_name(kind: str) -> str:
    """Their name of the token embedding."""
    return ARCHITECTURES[kind].weights_outside_blocks["embedding.weight"][0]


def _weight_or_zeros(weights: dict[str, Tensor], name: str) -> Tensor:
    """A weight of the GPT; for a bias that the GPT does without, as many zeros as its weight has rows."""
    if name in weights:
        return weights[name]
    weight = weights[f"{name.removesuffix('.bias')}.weight"]
    return weight.new_zeros(len(weight))


def _transpose_conv1d(their_name: str, weight: Tensor) -> Tensor:
    """Transpose a Conv1D of GPT-2, (in, out), to (out, in) or back; any other weight stays."""
    return weight.T if is_conv1d(their_name, weight.ndim) else weight


def our_config(config: dict) -> GPTConfig:
    """Translate a Hugging Face config.

    Raises UserError: another model type, an absent size, or a setting that GPT does not compute.
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
    # transformers ties GPT-2's embeddings unless the config says otherwise, and those of the others only if it does.
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
        raise UserError(renamed(str(error), names)) from None


def renamed(sentence: str, names: Mapping[str, str]) -> str:
    """A sentence of GPTConfig, with the names that a file has for the settings in the place of ours."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), sentence)


def _rotary_base(rope: object, kind: str) -> object:
    """The base of rotary positions that turn all of a head's dimensions, by angles that nothing rescales."""
    values = rope if isinstance(rope, dict) else {}
    others = {name: value for name, value in values.items() if PLAIN_ROPE.get(name) != value}
    base = others.pop("rope_theta", None)
    if base is None or others:
        refuse("rope_parameters", "a rope_theta without further settings", kind, rope)
    return base


def _our_activation(config: dict, kind: str, architecture: Architecture) -> str:
    """Our name of the activation in an MLP; UserError for one that GPT does not compute for this model type."""
    default = next(iter(architecture.activations.values()))
    theirs = config.get(architecture.activation, default)
    for ours, name in architecture.activations.items():
        if theirs in (name, OTHER_NAMES.get(name, name)):
            return ours
    refuse(architecture.activation, " or ".join(architecture.activations.values()), kind, theirs)


def _their_config(config: GPTConfig, kind: str) -> dict:
    """Translate a GPTConfig that choose_architecture let pass."""
    architecture = ARCHITECTURES[kind]
    exported = {theirs: getattr(config, ours) for ours, theirs in architecture.settings.items()}
    exported.update(architecture.their_values)
    exported["model_type"] = kind
    exported["architectures"] = [architecture.class_name]
    exported[architecture.activation] = architecture.activations[config.mlp]
    exported["tie_word_embeddings"] = config.tie_embeddings

    if kind == "gpt2":
        exported["n_ctx"] = config.context_length  # which llama.cpp's converter and MLX ask for
        exported["resid_pdrop"] = config.dropout
        exported["embd_pdrop"] = config.dropout
        exported["attn_pdrop"] = config.dropout
        return exported

    # Training may have seen shorter sequences than the weights came with.
    exported["max_position_embeddings"] = config.longest_input
    # The configs of the others have no null that stands for the usual size.
    exported["num_key_value_heads"] = config.n_kv_heads or config.n_heads
    exported["intermediate_size"] = config.d_ff or 4 * config.d_model
    exported["attention_dropout"] = config.dropout
    if kind in llama.KINDS:
        return exported | llama.their_settings(config, kind)
    exported["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rotary_base}
    return exported
