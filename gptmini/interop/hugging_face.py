"""Convert between GPT and Hugging Face models that compute the same logits.

Hugging Face models are given as plain dicts. Therefore, transformers is not needed.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gptmini.console.names import names_of
from gptmini.interop import llama
from gptmini.interop.architectures import (
    ARCHITECTURES,
    Architecture,
    check_setting,
    choose_architecture,
    known_model_type,
    refuse,
)
from gptmini.model import GPT, VOCABULARY, GPTConfig, config_from_file, meta_gpt
from gptmini.settings import checked
from gptmini.system.errors import UserError

# transformers has two names for the tanh form of GELU.
OTHER_NAMES = {"gelu_new": "gelu_pytorch_tanh"}
# For each model type, the settings that a config may omit. The default of n_inner is 4 times the width of the model. In
# a Llama, the default of num_key_value_heads is the number of query heads. Other Llama-style models have defaults that
# do not follow from the other settings.
OPTIONAL = {"gpt2": ("n_inner",), "llama": ("num_key_value_heads",)}
SHOWN = 5  # maximum number of weight names that an error message shows


def build_gpt(config: GPTConfig, state: dict[str, Tensor], kind: str) -> GPT:
    """Build the GPT that computes the same logits as a Hugging Face model of type `kind` with this state_dict().

    Raises UserError if a weight is missing or has the wrong shape.
    """
    # Check this first, because building the thousands of layers of a damaged config would take long.
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
            parts = [transpose_conv1d(part, state[part]) for part in their_names]
            weights[name] = torch.cat(parts).float()
            if name in VOCABULARY:
                weights[name] = F.pad(weights[name], (0, 0, 0, n_padding))
        model.load_state_dict(weights, assign=True)
    except (RuntimeError, IndexError) as error:  # torch raises these errors if shapes do not match
        reason = " ".join(str(error).split())
        raise UserError(f"the shapes of the weights do not match the config: {reason}") from None
    return model


def _names_in(state: dict[str, Tensor], model: GPT, kind: str) -> dict[str, list[str]]:
    config = model.config
    ours = model.state_dict()
    all_names = ARCHITECTURES[kind].weight_names(config)
    names = {name: their_names for name, their_names in all_names if name in ours}
    wanted = {their_name for their_names in names.values() for their_name in their_names}

    # Some files contain a tied embedding twice: under the name of the embedding, and under the name of the
    # unembedding.
    head = "lm_head.weight"
    (embedding,) = ARCHITECTURES[kind].weights_outside_blocks["embedding.weight"]
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

    kind is the model type, or None for the most widely known type that computes the same logits. The config includes
    model_type, but not the special ids. The state omits a tied unembedding. Raises UserError with the setting that no
    model of this type supports.
    """
    config = model.config
    kind = choose_architecture(config, kind)

    state = {}
    weights = model.state_dict()
    for name, their_names in ARCHITECTURES[kind].weight_names(config):
        if name in weights:
            weight = weights[name]
        elif kind in llama.KINDS:
            continue  # this bias or gain is optional in this model type
        else:  # GPT-2 has every bias, with one number for each row of the matrix
            matrix = weights[f"{name.removesuffix('.bias')}.weight"]
            weight = matrix.new_zeros(len(matrix))
        if name in VOCABULARY:
            weight = weight[: config.vocab_size]  # (V, C); removes the rows of padding
        parts = (weight,)
        if len(their_names) == 3:  # queries, keys and values: (H D, C), (G D, C), (G D, C)
            d_queries = config.n_heads * config.head_width
            d_keys = (config.n_kv_heads or config.n_heads) * config.head_width
            parts = weight.split([d_queries, d_keys, d_keys])
        for their_name, part in zip(their_names, parts, strict=True):
            state[their_name] = transpose_conv1d(their_name, part).clone()

    if kind in llama.KINDS:
        state = llama.swap_halves(state, config)
    return _their_config(config, kind), state


def transpose_conv1d(their_name: str, weight: Tensor) -> Tensor:
    """Transpose the matrix of a Conv1D in GPT-2, (in, out), to (out, in) or back. Return other weights unchanged."""
    is_conv1d = their_name.startswith(ARCHITECTURES["gpt2"].block_prefix) and weight.ndim == 2
    return weight.T if is_conv1d else weight


def to_gpt_config(config: dict) -> GPTConfig:
    """Translate a Hugging Face config, as its to_dict() returns it, to GPTConfig.

    Raises UserError with the model type or the setting that GPT does not support.
    """
    kind = known_model_type(config.get("model_type"))
    checked(config, llama.ConfigTypes)
    architecture = ARCHITECTURES[kind]

    optional = OPTIONAL.get(kind, ())
    needed = [name for name in architecture.settings.values() if name not in optional]
    absent = [name for name in needed if name not in config]
    if absent:
        raise UserError(f"the config of a model of type {kind} must have {', '.join(absent)}")

    fixed = {**architecture.their_values, "quantization_config": None}
    if kind not in llama.KINDS:
        fixed["rope_scaling"] = None
    for name, value in fixed.items():
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
    elif kind == "nanochat":
        settings |= llama.rotary_settings(config, kind)
        if settings["rotary_scaling"]:
            refuse("rope_type", "default", kind, config["rope_parameters"])
    return config_from_file(settings)


def _our_activation(config: dict, kind: str, architecture: Architecture) -> str:
    default = next(iter(architecture.activations.values()))
    theirs = config.get(architecture.activation, default)
    for ours, name in architecture.activations.items():
        if theirs in (name, OTHER_NAMES.get(name, name)):
            return ours
    refuse(architecture.activation, " or ".join(architecture.activations.values()), kind, theirs)


def _their_config(config: GPTConfig, kind: str) -> dict:
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
        exported["attn_pdrop"] = 0.0
        return exported

    # The imported model may support longer sequences than training uses.
    exported["max_position_embeddings"] = config.longest_input
    # In the configs of the other model types, null does not mean the default size.
    exported["num_key_value_heads"] = config.n_kv_heads or config.n_heads
    exported["intermediate_size"] = config.d_ff or 4 * config.d_model
    exported["attention_dropout"] = 0.0
    if kind in llama.KINDS:
        return exported | llama.their_settings(config, kind)
    exported["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rotary_base}
    return exported
