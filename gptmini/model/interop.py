"""The same model under Hugging Face's names: GPT2LMHeadModel and NanoChatForCausalLM, both directions.

Works on plain dicts (a config's to_dict(), a model's state_dict()), so transformers itself is not needed.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT
from gptmini.model.layers import RMS_NORM_EPS

VOCABULARY = ("embedding.weight", "unembedding.weight")  # padded with us, not with them


@dataclass(frozen=True)
class _Family:
    """How one Hugging Face architecture says what GPTConfig says."""

    sizes: dict[str, str]  # their config key: ours
    theirs: dict[str, object]  # their config values that we compute, the only ones accepted
    ours: dict[str, object]  # our values that the architecture stands for
    init: str
    block_prefix: str
    block: dict[str, str]  # their name of a block's weight: ours
    outside: dict[str, str]  # the same for weights outside the blocks


_GPT2 = _Family(
    sizes={
        "vocab_size": "vocab_size",
        "n_positions": "context_length",
        "n_embd": "d_model",
        "n_layer": "n_layers",
        "n_head": "n_heads",
        "n_inner": "d_ff",
    },
    theirs={
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
    },
    ours={
        "norm": "layernorm",
        "position": "learned",
        "mlp": "gelu",
        "bias": True,
        "tie_embeddings": True,
    },
    init="gpt2",
    block_prefix="transformer.h.",
    block={
        f"{theirs}.{kind}": f"{ours}.{kind}"
        for theirs, ours in (
            ("ln_1", "attention_norm"),
            ("attn.c_attn", "attention.qkv"),
            ("attn.c_proj", "attention.output"),
            ("ln_2", "mlp_norm"),
            ("mlp.c_fc", "mlp.input"),
            ("mlp.c_proj", "mlp.output"),
        )
        for kind in ("weight", "bias")
    },
    outside={
        "transformer.wte.weight": "embedding.weight",
        "transformer.wpe.weight": "position_embedding.weight",
        "transformer.ln_f.weight": "norm.weight",
        "transformer.ln_f.bias": "norm.bias",
    },
)
_NANOCHAT = _Family(
    sizes={
        "vocab_size": "vocab_size",
        "max_position_embeddings": "context_length",
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "intermediate_size": "d_ff",
        "final_logit_softcapping": "logit_softcap",
    },
    theirs={
        "hidden_act": "relu2",
        "rms_norm_eps": RMS_NORM_EPS,
        "attention_bias": False,
        "tie_word_embeddings": False,
    },
    ours={
        "norm": "rmsnorm",
        "position": "rotary",
        "mlp": "relu2",
        "bias": False,
        "tie_embeddings": False,
        "qk_norm": True,
        "embedding_norm": True,
    },
    init="zero_projections",
    block_prefix="model.layers.",
    block={
        "self_attn.o_proj.weight": "attention.output.weight",
        "mlp.fc1.weight": "mlp.input.weight",
        "mlp.fc2.weight": "mlp.output.weight",
    },
    outside={"model.embed_tokens.weight": "embedding.weight", "lm_head.weight": "unembedding.weight"},
)
_FAMILIES = {"gpt2": _GPT2, "nanochat": _NANOCHAT}


def from_hugging_face(config: dict, state: dict[str, Tensor]) -> GPT:
    """Build the GPT that a Hugging Face model is.

    Args:
        config: the model's config.to_dict(), with model_type gpt2 or nanochat.
        state: the model's state_dict().

    Returns:
        A GPT whose logits are the same.

    Raises:
        ValueError: another model type, a setting that we do not compute, or a missing or misshapen weight.
    """
    kind = config.get("model_type")
    if kind not in _FAMILIES:
        raise ValueError(f"model_type must be gpt2 or nanochat, got {kind!r}")
    family = _FAMILIES[kind]
    for name, value in family.theirs.items():
        if config.get(name, value) != value:
            raise ValueError(f"{name} must be {value} for a {kind} that we compute, got {config[name]}")
    if absent := [name for name in family.sizes if name not in config]:
        raise ValueError(f"the config of a {kind} must have {', '.join(absent)}")
    sizes = {ours: config[theirs] for theirs, ours in family.sizes.items()}
    if kind == "nanochat":
        sizes["rotary_base"] = float(config["rope_parameters"]["rope_theta"])
    model = GPT(GPTConfig(**sizes, **family.ours, init=family.init))
    renamed = _rename(family, state, model.config)
    for name, tensor in model.state_dict().items():
        rows = model.config.vocab_size if name in VOCABULARY else tensor.size(0)  # the others are padding
        wanted, source = (rows, *tensor.shape[1:]), renamed.get(name)
        if source is None or source.shape != wanted:
            got = "none" if source is None else tuple(source.shape)
            raise ValueError(f"the weight for {name} must be {wanted}, got {got}")
        tensor[:rows] = source
    return model


def to_hugging_face(model: GPT) -> tuple[dict, dict[str, Tensor]]:
    """Config and state dict for GPT2LMHeadModel or NanoChatForCausalLM, whichever computes the same.

    Returns:
        Keyword arguments of the Hugging Face config with model_type among them, and the state dict.

    Raises:
        ValueError: neither computes what this model does; the differing setting is named.
    """
    config = model.config
    kind = "gpt2" if config.norm == "layernorm" else "nanochat"
    family = _FAMILIES[kind]
    free = {*family.sizes.values(), "dropout", "init", "rotary_base"}  # these may be anything; the others are fixed
    for field in fields(config):
        value, wanted = getattr(config, field.name), family.ours.get(field.name, field.default)
        if field.name not in free and value != wanted:
            raise ValueError(f"{field.name} must be {wanted} to export as {kind}, got {field.name}={value}")
    theirs = {their: getattr(config, our) for their, our in family.sizes.items()} | family.theirs
    theirs["model_type"] = kind
    if kind == "gpt2":
        theirs |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    else:
        theirs["num_key_value_heads"] = config.n_kv_heads or config.n_heads
        theirs["intermediate_size"] = config.d_ff or 4 * config.d_model
        theirs["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rotary_base}
        theirs["attention_dropout"] = config.dropout
    return theirs, _unrename(family, model.state_dict(), config)


def _rename(family: _Family, state: dict[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Their state dict under our names; what is missing there is missing here."""
    renamed = {ours: state[theirs] for theirs, ours in family.outside.items() if theirs in state}
    for i in range(config.n_layers):
        prefix = f"{family.block_prefix}{i}."
        for theirs, ours in family.block.items():
            if (tensor := state.get(prefix + theirs)) is not None:
                conv1d = family is _GPT2 and tensor.ndim == 2  # stores (in, out)
                renamed[f"blocks.{i}.{ours}"] = tensor.T if conv1d else tensor
        parts = [state.get(f"{prefix}self_attn.{part}_proj.weight") for part in "qkv"]
        if family is _NANOCHAT and all(part is not None for part in parts):
            renamed[f"blocks.{i}.attention.qkv.weight"] = torch.cat(parts)  # ((H + 2 G) D, C)
    return renamed


def _unrename(family: _Family, state: dict[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Our state dict under their names, without the padded rows of the vocabulary."""
    exported = {theirs: state[ours].detach().clone() for theirs, ours in family.outside.items()}
    for theirs, ours in family.outside.items():
        if ours in VOCABULARY:
            exported[theirs] = exported[theirs][: config.vocab_size]  # (V, C)
    if family is _GPT2:
        exported["lm_head.weight"] = exported["transformer.wte.weight"]
    for i in range(config.n_layers):
        prefix = f"{family.block_prefix}{i}."
        for theirs, ours in family.block.items():
            tensor = state[f"blocks.{i}.{ours}"].detach()
            exported[prefix + theirs] = (tensor.T if family is _GPT2 and tensor.ndim == 2 else tensor).clone()
        if family is _NANOCHAT:
            n_kv = (config.n_kv_heads or config.n_heads) * config.d_head
            parts = state[f"blocks.{i}.attention.qkv.weight"].detach().split((config.d_model, n_kv, n_kv))
            for part, tensor in zip("qkv", parts, strict=True):
                exported[f"{prefix}self_attn.{part}_proj.weight"] = tensor.clone()
    return exported
