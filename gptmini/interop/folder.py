"""Write a folder for transformers. It has the config, weights, tokenizer, sampling settings and a model card."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from gptmini.interop.architectures import ARCHITECTURES
from gptmini.interop.folder_settings import (
    CONFIG,
    GENERATION,
    TOKENIZER,
    Published,
    parse_source_settings,
    special_ids,
    with_new_ends,
)
from gptmini.interop.hugging_face import to_hugging_face
from gptmini.interop.reading import GPT2_PREFIX
from gptmini.interop.tokenizer_writing import write_tokenizer
from gptmini.model import GPT
from gptmini.system.errors import UserError
from gptmini.system.files import encodable, flush_file, new_folder
from gptmini.system.version import __version__
from gptmini.tokenizer import Tokenizer

LARGEST_FILE = "5GB"  # if the weights are larger, they are split into several files, as on the hub
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# The model card. data/reading/outputs.py recognises an export by the header and the words "exported by gptmini" with a
# version.
CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- gptmini
---

# {name}

A GPT with {n_parameters:,} parameters, exported by gptmini {version} as `{architecture}`.
"""


def write_folder(
    path: Path,
    model: GPT,
    tokenizer: Tokenizer,
    *,
    kind: str | None = None,
    dtype: str = "fp32",
    sampling: Mapping[str, object],
    published: Mapping[str, str] | None = None,
) -> str:
    """Write a folder of a Hugging Face model atomically, and return the model type.

    Args:
        path: the folder. If the folder exists, it must be empty.
        model: a GPT in eval mode on the CPU. Its weights must be float32.
        kind: the model type. See to_hugging_face.
        dtype: the dtype of the exported weights. It must be a key of DTYPES.
        sampling: settings for generation_config.json in addition to the ids. They are ignored if `published` is given.
        published: the result of read_source_settings for the folder that the weights came from, if there is one.

    Raises UserError if the folder is not empty, or if no model type computes the same logits as the model.
    """
    path = path.absolute()
    require_empty(path)
    before = parse_source_settings(published)
    kind = kind or before.get(CONFIG, {}).get("model_type")
    exported, state = to_hugging_face(model, kind=kind)
    kind = exported["model_type"]
    config = exported | special_ids(tokenizer, before)
    config["dtype"] = str(DTYPES[dtype]).removeprefix("torch.")

    with new_folder(path) as folder:
        _write_json(folder / "config.json", config)
        _write_weights(folder, config, state, DTYPES[dtype])
        write_tokenizer(
            tokenizer,
            folder,
            context_length=model.config.longest_input,
            published=before.get(TOKENIZER),
        )
        generation = _generation(tokenizer, sampling, before)
        if generation is not None:
            _write_json(folder / GENERATION, generation)
        card = CARD.format(
            name=encodable(path.name),
            n_parameters=model.n_parameters,
            version=__version__,
            architecture=ARCHITECTURES[kind].class_name,
        )
        (folder / "README.md").write_text(card, encoding="utf-8")

        # Other users cannot read the files that the safetensors library writes. Give all files the mode of config.json.
        mode = (folder / "config.json").stat().st_mode
        for file in folder.iterdir():
            file.chmod(mode)
            with file.open("rb+") as opened:
                flush_file(opened)
    return kind


def require_empty(path: Path) -> None:
    """Raise UserError if a path exists and is not an empty folder."""
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise UserError(
            f"{path} already exists and is not an empty folder; delete it or choose another path"
        )


def _generation(
    tokenizer: Tokenizer, sampling: Mapping[str, object], published: Published
) -> dict | None:
    """Return the content of generation_config.json, or None if the original folder does not have this file."""
    if GENERATION in published:
        return with_new_ends(published[GENERATION], tokenizer, published)
    if published:
        return None
    # A token is required to pad a batch of prompts. Use end-of-text, because it never occurs inside a document.
    return {**special_ids(tokenizer, {}), "pad_token_id": tokenizer.end_of_text, **sampling}


def _write_weights(
    folder: Path, config: dict, state: dict[str, Tensor], dtype: torch.dtype
) -> None:
    from huggingface_hub import save_torch_state_dict

    # A GPT-2 with tied embeddings uses the weight names of the bare model, like OpenAI's GPT-2 on the hub. MLX reads
    # only these names.
    is_bare = config["tie_word_embeddings"] and config["model_type"] == "gpt2"
    prefix = GPT2_PREFIX if is_bare else ""
    weights = {}
    for name, weight in state.items():
        rounded = weight.to(dtype).contiguous()
        if not bool(rounded.isfinite().all()):
            raise UserError(f"every weight must be finite in {dtype}, but {name} is not")
        weights[name.removeprefix(prefix)] = rounded
    try:
        save_torch_state_dict(
            weights, folder, max_shard_size=LARGEST_FILE, metadata={"format": "pt"}
        )
    except SafetensorError as error:  # the library also raises this error if the disk is full
        raise UserError(
            f"cannot write the weights to {folder.parent}: {error}; check the free disk space"
        ) from None


def _write_json(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
