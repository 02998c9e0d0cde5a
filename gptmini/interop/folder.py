"""A folder that transformers, and what builds on it, reads: config, weights, tokenizer, generation settings, card."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gptmini.checks import UserError
from gptmini.files import flush_file, new_folder
from gptmini.interop.card import Training, model_card
from gptmini.interop.hugging_face import to_hugging_face
from gptmini.interop.reading import GPT2_PREFIX, read_folder
from gptmini.interop.tokenizer_json import write_tokenizer
from gptmini.model.gpt import GPT
from gptmini.tokenizer import Tokenizer

LARGEST_FILE = "5GB"  # of weights; more are divided among several files, as on the hub
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
READABLE = 0o644  # by everybody, as files of other programs are
COMPARED = 64  # tokens on which a written folder is compared with the model
# Largest difference of a logit, in parts of the largest logit, that rounding explains.
TOLERANCES = {"fp32": 1e-4, "bf16": 0.1, "fp16": 0.02}


def write_folder(
    path: Path,
    model: GPT,
    tokenizer: Tokenizer,
    training: Training,
    *,
    kind: str | None = None,
    dtype: str = "fp32",
    sampling: Mapping[str, object],
) -> str:
    """Write a folder of a Hugging Face model, whole or not at all, and compare what it holds with the model.

    Args:
        path: the folder, which must not exist, or be empty.
        model: the model, in eval mode on the CPU, its weights in float32.
        tokenizer: its tokenizer.
        training: what the model card says of the training.
        kind: model type, as for to_hugging_face.
        dtype: of the weights, a key of DTYPES.
        sampling: settings of generation_config.json, besides the ids.

    Returns the model type.
    Raises UserError: the folder is there already, or no model type computes what the model does.
    """
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(
            f"{path} must not exist yet, or be an empty folder; delete it, or name another"
        )
    config, state = to_hugging_face(model, end_of_text=tokenizer.end_of_text, kind=kind)
    config["dtype"] = str(DTYPES[dtype]).removeprefix("torch.")
    chosen = config["model_type"]

    if path.is_dir():
        path.rmdir()
    with new_folder(path) as folder:
        _write_json(folder / "config.json", config)
        _write_weights(folder, config, state, DTYPES[dtype])
        write_tokenizer(tokenizer, folder, context_length=model.config.context_length)
        _write_json(folder / "generation_config.json", _generation(tokenizer, sampling))
        card = model_card(path.name, model, tokenizer, training, kind=chosen)
        (folder / "README.md").write_text(card, encoding="utf-8")

        for file in folder.iterdir():
            file.chmod(READABLE)
            with file.open("rb+") as opened:
                flush_file(opened)
        _compare(folder, model, tokenizer, TOLERANCES[dtype])
    return chosen


def _generation(tokenizer: Tokenizer, sampling: Mapping[str, object]) -> dict:
    """The settings of generation_config.json."""
    ids = {"bos_token_id": tokenizer.end_of_text, "eos_token_id": tokenizer.end_of_text}
    return {**ids, **sampling}


def _write_weights(
    folder: Path, config: dict, state: dict[str, Tensor], dtype: torch.dtype
) -> None:
    """Write the weights as safetensors; an unembedding that is the embedding is written once."""
    from huggingface_hub import save_torch_state_dict

    is_tied = config["tie_word_embeddings"]
    # A tied GPT-2 has the names of the bare model, as OpenAI's on the hub has. MLX knows no others.
    prefix = GPT2_PREFIX if is_tied and config["model_type"] == "gpt2" else ""
    weights = {}
    for name, weight in state.items():
        if name == "lm_head.weight" and is_tied:
            continue
        weights[name.removeprefix(prefix)] = weight.to(dtype).contiguous()
    save_torch_state_dict(weights, folder, max_shard_size=LARGEST_FILE, metadata={"format": "pt"})


def _write_json(path: Path, values: dict) -> None:
    """Write values as JSON that people can read."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def _compare(folder: Path, model: GPT, tokenizer: Tokenizer, tolerance: float) -> None:
    """Raise an AssertionError if what a folder holds does not compute what the model does, or encodes otherwise."""
    read, encoder = read_folder(folder)
    n_tokens = min(COMPARED, model.config.context_length)
    tokens = torch.arange(n_tokens)[None] * 7 % model.config.vocab_size
    expected = model(tokens)
    difference = (read.eval()(tokens) - expected).abs().max()
    assert difference <= tolerance * expected.abs().max().clamp(min=1), "the export is wrong"
    assert encoder.to_dict() == tokenizer.to_dict(), "the exported tokenizer is wrong"
