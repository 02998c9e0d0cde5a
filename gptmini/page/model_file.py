"""Write a page with a model in it: one HTML file that any browser opens, without a server and without Python."""

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gptmini.attention import frequencies, scale_frequencies
from gptmini.model import GPT, NORM_EPS
from gptmini.page.assembling import TENSORS, file_page
from gptmini.page.tokenizer_settings import tokenizer_settings
from gptmini.system.files import replacing
from gptmini.tokenizer import Tokenizer, missing_template


def write_page(
    out: Path,
    model: GPT,
    tokenizer: Tokenizer,
    *,
    name: str,
    dtype: str,
    defaults: dict[str, Any],
) -> None:
    """Write a page with a model in it.

    Args:
        out: the HTML file.
        model, tokenizer: the model, and its tokenizer.
        name: name of the model, which the page shows.
        dtype: int8, bf16 or fp32. With int8, each row of a matrix has a scale.
        defaults: the values of fields on the page: temperature, and max_tokens, the length of an answer.

    Raises UserError if the page does not support the tokenizer.
    """
    settings = tokenizer_settings(tokenizer)
    stored = list(_stored(model, dtype))
    data = {
        "described": {
            "model": name,
            "chats": settings["chat"] is not None,
            "reason": _why_not_chat(name, tokenizer, settings),
            "defaults": defaults,
            "ends": [tokenizer.decode([i]) for i in settings["ends"]],
        },
        "config": _settings(model),
        "tokenizer": settings,
        "tensors": [
            {"name": tensor_name, "dtype": stored_dtype, "columns": tensor.size(-1)}
            for tensor_name, stored_dtype, tensor in stored
        ],
    }

    # In JSON, < occurs only in strings. Without it, no text can end the element of the script.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    before, _, behind = file_page(text).partition(TENSORS)

    with replacing(out) as file:
        file.write(before.encode())
        for _, _, tensor in stored:
            data_of_tensor = tensor.contiguous().view(torch.uint8).numpy().tobytes()
            file.write(b'<script class="tensor" type="text/plain">')
            file.write(base64.b64encode(data_of_tensor))
            file.write(b"</script>\n")
        file.write(behind.encode())


def _why_not_chat(name: str, tokenizer: Tokenizer, settings: dict[str, Any]) -> str | None:
    if settings["chat"] is not None:
        return None
    if tokenizer.chat_template is None:
        return missing_template(name)
    return f"{name} has a chat template that only gptmini serve can run"


def _settings(model: GPT) -> dict[str, Any]:
    """Return the settings of a model, with a number instead of each None that stands for another setting."""
    config = model.config
    settings = asdict(config) | {
        "n_kv_heads": config.n_kv_heads or config.n_heads,
        "d_head": config.head_width,
        "norm_eps": config.norm_eps or NORM_EPS[config.norm],
        "qk_norm_eps": config.norm_eps or NORM_EPS["rmsnorm"],
        "attention_scale": config.attention_scale or config.head_width**-0.5,
        "longest_input": config.longest_input,
        "frequencies": None,
    }

    if config.rotary_base is not None:
        turns = frequencies(config.head_width, config.rotary_base)  # (D/2)
        if config.rotary_scaling is not None:
            turns = scale_frequencies(turns, **config.rotary_scaling)
        settings["frequencies"] = turns.tolist()
    return settings


def _stored(model: GPT, dtype: str) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the name, the dtype and the data of each tensor of a page. Vectors are always stored in fp32."""
    for name, parameter in model.named_parameters():
        weight = parameter.detach().float()
        if name in ("embedding.weight", "unembedding.weight"):
            weight = weight[: model.config.vocab_size]  # without the padding rows

        if weight.ndim == 1 or dtype == "fp32":
            yield name, "fp32", weight
        elif dtype == "bf16":
            yield name, "bf16", weight.bfloat16().view(torch.int16)
        else:
            scale = weight.abs().amax(dim=1).clamp(min=1e-30) / 127  # (rows)
            yield name, "int8", (weight / scale.unsqueeze(1)).round().to(torch.int8)
            yield f"{name}.scale", "fp32", scale
