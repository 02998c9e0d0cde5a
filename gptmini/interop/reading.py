"""A folder of a Hugging Face model, read as a GPT and its tokenizer: safetensors and JSON, nothing that runs."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, NonNegativeInt
from torch import Tensor
from typing_extensions import TypedDict  # which pydantic takes before Python 3.12

from gptmini.interop.hugging_face import gpt_of, our_config
from gptmini.interop.tokenizer_reading import read_tokenizer
from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT
from gptmini.settings import FileName, checked
from gptmini.tokenizer import Tokenizer
from gptmini.untrusted import read_json, read_safetensors
from gptmini.user_error import UserError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GPT2_PREFIX = "transformer."
# Ends of names of tensors that are no weights: masks in older files of GPT-2, and frequencies of rotary positions.
NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def _in_a_list(value: object) -> object:
    """Several values as they stand, one as a list of it, and null as an empty list."""
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


class Ends(TypedDict, total=False):
    """What config.json and generation_config.json say of the ids that end a sample: one or several."""

    eos_token_id: Annotated[list[NonNegativeInt], BeforeValidator(_in_a_list)]


class Index(TypedDict):
    """What is read of an index of weights: the file in the same folder that holds each tensor."""

    weight_map: Annotated[dict[str, FileName], Field(min_length=1)]


def read_folder(path: Path) -> tuple[GPT, Tokenizer]:
    """The GPT and the tokenizer of a folder.

    Args:
        path: a folder with config.json, model.safetensors or its parts, and tokenizer.json or vocab.json with
            merges.txt, of a model type that GPT computes.

    Raises UserError: a file is damaged or pickled, or holds what GPT does not compute; OSError: a file is missing.
    """
    config, kind = _read_config(path)
    state: dict[str, Tensor] = {}
    for file in _weight_files(path):
        state.update(read_safetensors(file))
    state = {name: weight for name, weight in state.items() if not name.endswith(NO_WEIGHTS)}
    if kind == "gpt2":
        state = _with_prefix(state)
    try:
        model = gpt_of(config, state, kind)
    except UserError as error:
        file = path / "config.json"
        raise UserError(f"{file} does not fit the weights of its folder: {error}") from None

    return model.eval(), _tokenizer_for(config, kind, path)


def read_sizes(path: Path) -> tuple[GPTConfig, Tokenizer]:
    """The sizes of the model in a folder, and its tokenizer, without its weights.

    Raises UserError: a file is damaged, or holds what GPT does not compute; OSError: a file is missing.
    """
    config, kind = _read_config(path)
    return config, _tokenizer_for(config, kind, path)


def _read_config(path: Path) -> tuple[GPTConfig, str]:
    """The sizes that the config.json of a folder stands for, and its model type; errors as for read_folder."""
    file = path / "config.json"
    values = read_json(file)
    try:
        return our_config(values), values["model_type"]
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _tokenizer_for(config: GPTConfig, kind: str, path: Path) -> Tokenizer:
    """The tokenizer of a folder for a model of these sizes; UserError if it has more ids than the model."""
    ends: list[int] = []
    for file in (path / "config.json", path / "generation_config.json"):
        if file.exists():
            ends += checked(read_json(file), Ends, file).get("eos_token_id", [])
    # transformers writes GPT-2's own id where a configuration was given none, however small the model is.
    ends = [end for end in dict.fromkeys(ends) if end < config.vocab_size]
    return read_tokenizer(path, n_vocab=config.vocab_size, ends=ends, kind=kind)


def _weight_files(path: Path) -> list[Path]:
    """The files of weights of a folder, which lie in it; UserError if there are none, or an index says otherwise."""
    if (path / WEIGHTS).exists():
        return [path / WEIGHTS]
    if not (path / INDEX).exists():
        raise UserError(
            f"{path} must have {WEIGHTS}, or {INDEX} with its parts; a pickle of weights (.bin) could run code, and is "
            "not read"
        )
    index = checked(read_json(path / INDEX), Index, path / INDEX)
    names = sorted(set(index["weight_map"].values()))
    # os.path.exists takes any name, however long or odd.
    missing = [name for name in names if not os.path.exists(path / name)]  # noqa: PTH110
    if missing:
        raise UserError(
            f"{path / INDEX} names {missing[0]!r:.80}, which is not in the folder; download it too"
        )
    return [path / name for name in names]


def _with_prefix(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of GPT-2 under the names that they have with their head; files of the bare model leave a prefix out."""
    if any(name.startswith(GPT2_PREFIX) for name in state):
        return state
    return {
        name if name == "lm_head.weight" else f"{GPT2_PREFIX}{name}": weight
        for name, weight in state.items()
    }
