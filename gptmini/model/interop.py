"""The same model under Hugging Face's names: GPT2LMHeadModel and NanoChatForCausalLM, both directions.

Works on plain dicts (a config's to_dict(), a model's state_dict()), so transformers itself is not needed.
"""

import torch
from torch import Tensor

from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT
from gptmini.model.layers import RMS_NORM_EPS

GPT2_ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh")  # two names of the tanh form
LAYER_NORM_EPS = 1e-5

_GPT2_BLOCK = {
    "ln_1.weight": "attention_norm.weight",
    "ln_1.bias": "attention_norm.bias",
    "attn.c_attn.weight": "attention.qkv.weight",
    "attn.c_attn.bias": "attention.qkv.bias",
    "attn.c_proj.weight": "attention.output.weight",
    "attn.c_proj.bias": "attention.output.bias",
    "ln_2.weight": "mlp_norm.weight",
    "ln_2.bias": "mlp_norm.bias",
    "mlp.c_fc.weight": "mlp.input.weight",
    "mlp.c_fc.bias": "mlp.input.bias",
    "mlp.c_proj.weight": "mlp.output.weight",
    "mlp.c_proj.bias": "mlp.output.bias",
}
_GPT2_OUTSIDE = {
    "transformer.wpe.weight": "position_embedding.weight",
    "transformer.ln_f.weight": "norm.weight",
    "transformer.ln_f.bias": "norm.bias",
}
_NANOCHAT_BLOCK = {
    "self_attn.o_proj.weight": "attention.output.weight",
    "mlp.fc1.weight": "mlp.input.weight",
    "mlp.fc2.weight": "mlp.output.weight",
}
_GPT2_MEANS = {
    "norm": "layernorm",
    "position": "learned",
    "mlp": "gelu",
    "bias": True,
    "tie_embeddings": True,
    "n_kv_heads": None,
    "qk_norm": False,
    "attention_scale": None,
    "embedding_norm": False,
    "logit_softcap": None,
}
_NANOCHAT_MEANS = {
    "norm": "rmsnorm",
    "position": "rotary",
    "mlp": "relu2",
    "bias": False,
    "tie_embeddings": False,
    "qk_norm": True,
    "attention_scale": None,
    "embedding_norm": True,
}


def from_hugging_face(config: dict, state: dict[str, Tensor]) -> GPT:
    """Build the GPT that a Hugging Face model is.

    Args:
        config: the model's config.to_dict(), with model_type gpt2 or nanochat.
        state: the model's state_dict().

    Returns:
        A GPT whose logits are the same.

    Raises:
        ValueError: another model type, or a setting that GPTConfig cannot express.
    """
    kind = config.get("model_type")
    if kind not in ("gpt2", "nanochat"):
        raise ValueError(f"model_type must be gpt2 or nanochat, got {kind!r}")
    ours = _gpt2_config(config) if kind == "gpt2" else _nanochat_config(config)
    model = GPT(ours)
    renamed = _gpt2_state(state, ours.n_layers) if kind == "gpt2" else _nanochat_state(state, ours.n_layers)
    own = model.state_dict()
    if missing := sorted(set(own) - set(renamed)):
        raise ValueError(f"the {kind} state dict must hold every weight, missing for {', '.join(missing)}")
    for name, tensor in own.items():
        source = renamed[name]
        if source.shape[1:] != tensor.shape[1:] or source.size(0) > tensor.size(0):
            raise ValueError(f"{name} must be {tuple(tensor.shape)}, got {tuple(source.shape)}")
        tensor[: source.size(0)] = source  # rows past it are padded vocabulary
    return model


def to_hugging_face(model: GPT) -> tuple[dict, dict[str, Tensor]]:
    """Config and state dict for GPT2LMHeadModel or NanoChatForCausalLM, whichever computes the same.

    Returns:
        Keyword arguments of the Hugging Face config with model_type among them, and the state dict.

    Raises:
        ValueError: neither computes what this model does; the differing setting is named.
    """
    config = model.config
    kind, means = ("gpt2", _GPT2_MEANS) if config.norm == "layernorm" else ("nanochat", _NANOCHAT_MEANS)
    for name, value in means.items():
        if getattr(config, name) != value:
            raise ValueError(f"{name} must be {value} to export as {kind}, got {name}={getattr(config, name)}")
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for name in ("embedding.weight", "unembedding.weight"):
        if name in state:
            state[name] = state[name][: config.vocab_size]  # (V, C)
    return _export_gpt2(config, state) if kind == "gpt2" else _export_nanochat(config, state)


def _require(config: dict, name: str, *accepted: object) -> None:
    if config.get(name, accepted[0]) not in accepted:
        raise ValueError(f"{name} must be {' or '.join(map(str, accepted))}, got {name}={config[name]}")


def _gpt2_config(config: dict) -> GPTConfig:
    _require(config, "activation_function", *GPT2_ACTIVATIONS)
    _require(config, "layer_norm_epsilon", LAYER_NORM_EPS)
    _require(config, "scale_attn_by_inverse_layer_idx", False)
    _require(config, "scale_attn_weights", True)
    _require(config, "tie_word_embeddings", True)
    return GPTConfig(
        vocab_size=config["vocab_size"],
        context_length=config["n_positions"],
        d_model=config["n_embd"],
        n_layers=config["n_layer"],
        n_heads=config["n_head"],
        d_ff=config.get("n_inner"),
        init="gpt2",
        **_GPT2_MEANS,
    )


def _nanochat_config(config: dict) -> GPTConfig:
    _require(config, "hidden_act", "relu2")
    _require(config, "rms_norm_eps", RMS_NORM_EPS)
    _require(config, "attention_bias", False)
    _require(config, "tie_word_embeddings", False)
    rope = config["rope_parameters"]
    _require(rope, "rope_type", "default")
    return GPTConfig(
        vocab_size=config["vocab_size"],
        context_length=config["max_position_embeddings"],
        d_model=config["hidden_size"],
        n_layers=config["num_hidden_layers"],
        n_heads=config["num_attention_heads"],
        n_kv_heads=config["num_key_value_heads"],
        d_ff=config["intermediate_size"],
        rotary_base=rope["rope_theta"],
        logit_softcap=config["final_logit_softcapping"],
        init="zero_projections",
        **_NANOCHAT_MEANS,
    )


def _gpt2_state(state: dict[str, Tensor], n_layers: int) -> dict[str, Tensor]:
    renamed = {ours: state[theirs] for theirs, ours in _GPT2_OUTSIDE.items() if theirs in state}
    renamed["embedding.weight"] = state["transformer.wte.weight"]
    for i in range(n_layers):
        for theirs, ours in _GPT2_BLOCK.items():
            tensor = state[f"transformer.h.{i}.{theirs}"]
            renamed[f"blocks.{i}.{ours}"] = tensor.T if tensor.ndim == 2 else tensor  # Conv1D stores (in, out)
    return renamed


def _nanochat_state(state: dict[str, Tensor], n_layers: int) -> dict[str, Tensor]:
    renamed = {"embedding.weight": state["model.embed_tokens.weight"], "unembedding.weight": state["lm_head.weight"]}
    for i in range(n_layers):
        prefix = f"model.layers.{i}."
        for theirs, ours in _NANOCHAT_BLOCK.items():
            renamed[f"blocks.{i}.{ours}"] = state[prefix + theirs]
        parts = [state[f"{prefix}self_attn.{part}_proj.weight"] for part in "qkv"]
        renamed[f"blocks.{i}.attention.qkv.weight"] = torch.cat(parts)  # ((H + 2 G) D, C)
    return renamed


def _export_gpt2(config: GPTConfig, state: dict[str, Tensor]) -> tuple[dict, dict[str, Tensor]]:
    exported = {theirs: state[ours] for theirs, ours in _GPT2_OUTSIDE.items()}
    exported["transformer.wte.weight"] = exported["lm_head.weight"] = state["embedding.weight"]
    for i in range(config.n_layers):
        for theirs, ours in _GPT2_BLOCK.items():
            tensor = state[f"blocks.{i}.{ours}"]
            exported[f"transformer.h.{i}.{theirs}"] = tensor.T.contiguous() if tensor.ndim == 2 else tensor
    return {
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.context_length,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "activation_function": GPT2_ACTIVATIONS[0],
        "layer_norm_epsilon": LAYER_NORM_EPS,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
    }, exported


def _export_nanochat(config: GPTConfig, state: dict[str, Tensor]) -> tuple[dict, dict[str, Tensor]]:
    exported = {"model.embed_tokens.weight": state["embedding.weight"], "lm_head.weight": state["unembedding.weight"]}
    n_kv_heads = config.n_kv_heads or config.n_heads
    widths = [config.n_heads * config.d_head, n_kv_heads * config.d_head, n_kv_heads * config.d_head]
    for i in range(config.n_layers):
        prefix = f"model.layers.{i}."
        for theirs, ours in _NANOCHAT_BLOCK.items():
            exported[prefix + theirs] = state[f"blocks.{i}.{ours}"]
        parts = state[f"blocks.{i}.attention.qkv.weight"].split(widths)
        for part, tensor in zip("qkv", parts, strict=True):
            exported[f"{prefix}self_attn.{part}_proj.weight"] = tensor.clone()
    return {
        "model_type": "nanochat",
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff or 4 * config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": n_kv_heads,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": RMS_NORM_EPS,
        "hidden_act": "relu2",
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "final_logit_softcapping": config.logit_softcap,
        "attention_dropout": config.dropout,
    }, exported
