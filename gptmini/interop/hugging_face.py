"""To and from Hugging Face's GPT2LMHeadModel and NanoChatForCausalLM, as plain dicts: transformers is not needed."""

from collections.abc import Iterator
from dataclasses import fields

import torch
from torch import Tensor

from gptmini.checks import UserError, number
from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT, VOCABULARY
from gptmini.model.layers import RMS_NORM_EPS

BLOCKS = {"gpt2": "transformer.h.", "nanochat": "model.layers."}  # what precedes a block's number
_THEIRS = {  # config values of theirs that we compute, the only ones accepted
    "gpt2": {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}
    | {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    "nanochat": {"hidden_act": "relu2", "rms_norm_eps": RMS_NORM_EPS, "tie_word_embeddings": False}
    | {"attention_bias": False},
}
_OURS = {  # values of ours that the architecture stands for
    "gpt2": {"norm": "layernorm", "position": "learned", "mlp": "gelu", "bias": True, "tie_embeddings": True}
    | {"init": "gpt2"},
    "nanochat": {"norm": "rmsnorm", "position": "rotary", "mlp": "relu2", "bias": False, "tie_embeddings": False}
    | {"qk_norm": True, "embedding_norm": True, "init": "zero_projections"},
}
# Ours, GPT-2's, nanochat's; - where it has none, {q,k,v} where we stack three along their first axis.
_SIZES = """
vocab_size                   vocab_size                    vocab_size
context_length               n_positions                   max_position_embeddings
d_model                      n_embd                        hidden_size
n_layers                     n_layer                       num_hidden_layers
n_heads                      n_head                        num_attention_heads
n_kv_heads                   -                             num_key_value_heads
d_ff                         n_inner                       intermediate_size
logit_softcap                -                             final_logit_softcapping
"""
_OUTSIDE = """
embedding.weight             transformer.wte.weight        model.embed_tokens.weight
position_embedding.weight    transformer.wpe.weight        -
norm.weight                  transformer.ln_f.weight       -
norm.bias                    transformer.ln_f.bias         -
unembedding.weight           -                             lm_head.weight
"""
_BLOCK = """
attention_norm.weight        ln_1.weight                   -
attention_norm.bias          ln_1.bias                     -
attention.qkv.weight         attn.c_attn.weight            self_attn.{q,k,v}_proj.weight
attention.qkv.bias           attn.c_attn.bias              -
attention.output.weight      attn.c_proj.weight            self_attn.o_proj.weight
attention.output.bias        attn.c_proj.bias              -
mlp_norm.weight              ln_2.weight                   -
mlp_norm.bias                ln_2.bias                     -
mlp.input.weight             mlp.c_fc.weight               mlp.fc1.weight
mlp.input.bias               mlp.c_fc.bias                 -
mlp.output.weight            mlp.c_proj.weight             mlp.fc2.weight
mlp.output.bias              mlp.c_proj.bias               -
"""


def from_hugging_face(config: dict, state: dict[str, Tensor]) -> GPT:
    """GPT of the same logits as a Hugging Face model of type gpt2 or nanochat: its config.to_dict() and state_dict().

    Raises UserError: another model type, a setting that we do not compute, or a missing or misshapen weight.
    """
    kind = config.get("model_type")
    if kind not in BLOCKS:
        raise UserError(f"model_type must be gpt2 or nanochat, got {kind!r}")
    for name, value in _THEIRS[kind].items():
        if config.get(name, value) != value:
            raise UserError(f"{name} must be {value} for a {kind} that we compute, got {config[name]}")
    names = _column(_SIZES, kind)
    if absent := [name for name in names.values() if name not in config]:
        raise UserError(f"the config of a {kind} must have {', '.join(absent)}")

    sizes = {ours: config[theirs] for ours, theirs in names.items()}
    if kind == "nanochat":
        rope = config.get("rope_parameters")
        base = rope.get("rope_theta") if isinstance(rope, dict) else None
        sizes["rotary_base"] = float(number("rope_parameters.rope_theta", base, above=0))
    model = GPT(GPTConfig(**sizes, **_OURS[kind]))
    weights = model.state_dict()
    for ours, theirs in _weights(kind, model.config):
        rows = model.config.vocab_size if ours in VOCABULARY else len(weights[ours])  # the others are padding
        wanted = (rows, *weights[ours].shape[1:])

        parts = [_turned(name, state[name]) for name in theirs if name in state]
        shapes = [tuple(part.shape) for part in parts]
        try:
            source = torch.cat(parts) if len(parts) == len(theirs) else None
        except RuntimeError:  # of parts that differ in more than their number of rows
            source = None
        if source is None or source.shape != wanted:
            got = " and ".join(map(str, shapes)) or "none"
            raise UserError(f"the weight for {ours} must be {wanted}, got {got}")
        weights[ours][:rows] = source
    return model


def to_hugging_face(model: GPT) -> tuple[dict, dict[str, Tensor]]:
    """Config and state dict for GPT2LMHeadModel or NanoChatForCausalLM, whichever computes the same.

    Returns keyword arguments of the Hugging Face config with model_type among them, and the state dict.
    Raises UserError: neither computes what this model does; the differing setting is named.
    """
    config = model.config
    kind = "gpt2" if config.norm == "layernorm" else "nanochat"
    names = _column(_SIZES, kind)
    free = {*names, "dropout", "init", "rotary_base"}  # these may be anything; the others are fixed
    for field in fields(config):
        value, wanted = getattr(config, field.name), _OURS[kind].get(field.name, field.default)
        if field.name not in free and value != wanted:
            raise UserError(f"{field.name} must be {wanted} to export as {kind}, got {field.name}={value}")
    n_kv_heads = config.n_kv_heads or config.n_heads
    exported = {theirs: getattr(config, ours) for ours, theirs in names.items()} | _THEIRS[kind] | {"model_type": kind}
    if kind == "gpt2":
        exported |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    else:
        exported |= {"num_key_value_heads": n_kv_heads, "intermediate_size": config.d_ff or 4 * config.d_model}
        exported["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rotary_base}
        exported["attention_dropout"] = config.dropout
    weights, state = model.state_dict(), {}
    for ours, theirs in _weights(kind, config):
        rows = weights[ours][: config.vocab_size] if ours in VOCABULARY else weights[ours]
        widths = [len(rows)] if len(theirs) == 1 else [n * config.d_head for n in (config.n_heads, *[n_kv_heads] * 2)]
        for name, part in zip(theirs, rows.split(widths), strict=True):
            state[name] = _turned(name, part).clone()
    if kind == "gpt2":
        state["lm_head.weight"] = state["transformer.wte.weight"]
    return exported, state


def _column(table: str, kind: str) -> dict[str, str]:
    """Our names to those of one architecture."""
    rows = (line.split() for line in table.split("\n") if line)
    pairs = ((row[0], row[1 + list(BLOCKS).index(kind)]) for row in rows)
    return {ours: theirs for ours, theirs in pairs if theirs != "-"}


def _weights(kind: str, config: GPTConfig) -> Iterator[tuple[str, list[str]]]:
    """Each of our weights, and what they call it or its parts."""
    yield from ((ours, [theirs]) for ours, theirs in _column(_OUTSIDE, kind).items())
    for i in range(config.n_layers):
        for ours, theirs in _column(_BLOCK, kind).items():
            names = [theirs.replace("{q,k,v}", part) for part in "qkv"] if "{" in theirs else [theirs]
            yield f"blocks.{i}.{ours}", [f"{BLOCKS[kind]}{i}.{name}" for name in names]


def _turned(name: str, weight: Tensor) -> Tensor:
    """Transpose a matrix of GPT-2's blocks: its Conv1D stores (in, out)."""
    return weight.T if ".h." in name and weight.ndim == 2 else weight
