"""Llama-style models: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM.

All four models are GPTs with RMS norms that have gains, with rotary positions, and with a gated MLP. Qwen 2 has biases
in its query, key and value projections. Qwen 3 normalises queries and keys with gains.

Sources: transformers 5.23, modeling_llama.py, modeling_mistral.py, modeling_qwen2.py, modeling_qwen3.py and
modeling_rope_utils.py.
"""

from typing import Any

from pydantic import PositiveInt
from torch import Tensor
from typing_extensions import TypedDict  # pydantic requires this class before Python 3.12

from gptmini.interop.architectures import check_setting, refuse
from gptmini.model import NORM_EPS, GPTConfig
from gptmini.system.errors import UserError

KINDS = ("llama", "mistral", "qwen2", "qwen3")
# The suffixes of the weights that rotary positions affect. Hugging Face models rotate by the angle of a position. Our
# models rotate by minus this angle.
ROTATED_SUFFIXES = tuple(
    f".{part}.{kind}"
    for part in ("q_proj", "k_proj", "q_norm", "k_norm")
    for kind in ("weight", "bias")
)
SCALINGS = {  # for each rope_type, the numbers that scale the frequencies; maps our name to theirs
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_context_length": "original_max_position_embeddings",
    },
}


class Rope(TypedDict, total=False):
    """The types of the rotary settings in a config that GPTConfig does not check."""

    rope_type: str
    type: str


class ConfigTypes(TypedDict, total=False):
    """The types of the settings in a config that GPTConfig does not check."""

    max_position_embeddings: PositiveInt
    sliding_window: int | None
    layer_types: list[str] | None
    rope_scaling: Rope | None
    rope_parameters: Rope | None


def settings_of(config: dict, kind: str) -> dict[str, Any]:
    """Translate the settings of their config to GPTConfig, except the sizes that all architectures share."""
    check_setting(config, kind, "partial_rotary_factor", 1)
    _check_windows(config, kind)
    if kind == "qwen3" and config.get("head_dim") is None:
        raise UserError("the config of a model of type qwen3 must have head_dim")

    bias = kind == "llama" and config.get("mlp_bias", False)
    attention_bias = "qkv" if kind == "qwen2" else config.get("attention_bias", False)
    return {
        "d_head": config.get("head_dim"),
        "norm_eps": config.get("rms_norm_eps", NORM_EPS["rmsnorm"]),
        "bias": bias,
        "attention_bias": attention_bias if attention_bias != bias else None,
        "qk_norm": "gain" if kind == "qwen3" else False,
        **rotary_settings(config, kind),
    }


def their_settings(config: GPTConfig, kind: str) -> dict[str, Any]:
    """Return the settings for their config, except the sizes, as transformers 5 names them and as 4 and MLX do."""
    scaling: dict[str, Any] = dict(config.rotary_scaling or {})
    rope_type = {0: "default", 1: "linear", 4: "llama3"}[len(scaling)]
    rope = {theirs: scaling[ours] for ours, theirs in SCALINGS[rope_type].items()}
    rope["rope_type"] = rope_type

    settings = {
        "head_dim": config.head_width,
        "rms_norm_eps": config.norm_eps or NORM_EPS["rmsnorm"],
        "rope_theta": config.rotary_base,
        "rope_scaling": rope if scaling else None,
        "rope_parameters": {**rope, "rope_theta": config.rotary_base},
    }
    if kind == "llama":
        has_bias = config.bias if config.attention_bias is None else config.attention_bias
        settings |= {"attention_bias": has_bias, "mlp_bias": config.bias}
    if kind == "mistral":
        settings["sliding_window"] = None
    if kind == "qwen3":
        settings["attention_bias"] = bool(config.attention_bias)
    if kind in ("qwen2", "qwen3"):
        settings["use_sliding_window"] = False
    return settings


def swap_halves(state: dict[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Exchange the two halves of each head of queries and keys, to convert our weights to their weights or back.

    If the halves are exchanged, a rotation by an angle becomes a rotation by minus the angle.
    """
    exchanged = dict(state)
    for name, weight in state.items():
        if name.endswith(ROTATED_SUFFIXES):
            heads = weight.unflatten(0, (-1, 2, config.head_width // 2))  # (H, 2, D/2, ...)
            exchanged[name] = heads.flip(1).flatten(0, 2).contiguous()  # (H D, ...)
    return exchanged


def rotary_settings(config: dict, kind: str) -> dict[str, Any]:
    """Return the base and the scaling of rotary positions. transformers 4 and 5 have different names for them."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    check_setting(rope, kind, "partial_rotary_factor", 1)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in SCALINGS:
        refuse("rope_type", f"one of {', '.join(SCALINGS)}", kind, rope_type)
    names = SCALINGS[rope_type]
    absent = [theirs for theirs in names.values() if theirs not in rope]
    if absent:
        raise UserError(f"rope_scaling of rope_type {rope_type} must have {', '.join(absent)}")

    scaling = {ours: rope[theirs] for ours, theirs in names.items()}
    return {
        "rotary_base": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
        "rotary_scaling": scaling or None,
    }


def _check_windows(config: dict, kind: str) -> None:
    if kind == "mistral":
        window = config.get("sliding_window", 4096)  # the default of Mistral
        if window is not None and window < config["max_position_embeddings"]:
            refuse("sliding_window", "null or at least the context length", kind, window)
    check_setting(config, kind, "use_sliding_window", False)
    others = set(config.get("layer_types") or []) - {"full_attention"}
    if others:
        refuse("layer_types", "only full_attention", kind, min(others))
