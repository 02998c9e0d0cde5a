"""Read a Hugging Face model from the safetensors and JSON files in a folder. No code in the folder is run."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, NonNegativeInt
from torch import Tensor
from typing_extensions import TypedDict  # pydantic requires this class before Python 3.12

from gptmini.interop.hugging_face import build_gpt, to_gpt_config
from gptmini.interop.tokenizer_reading import read_tokenizer
from gptmini.model import GPT, GPTConfig
from gptmini.settings import FileName, checked
from gptmini.system.errors import UserError
from gptmini.system.files import exists
from gptmini.system.untrusted import read_json
from gptmini.system.untrusted_tensors import read_safetensors
from gptmini.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GPT2_PREFIX = "transformer."
# Suffixes of tensors that are not weights. Older GPT-2 files contain masks, and some files contain rotary frequencies.
NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def in_a_list(value: Any) -> list[Any]:
    """Return a list unchanged. Put a single value into a list. Return an empty list for null."""
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


class Ends(TypedDict, total=False):
    """The ids that end a sample, as in config.json and generation_config.json. There may be one id or several ids."""

    eos_token_id: Annotated[list[NonNegativeInt], BeforeValidator(in_a_list)]


class Index(TypedDict):
    """The part of the weights index that gptmini reads. It maps each tensor to a file in the same folder."""

    weight_map: Annotated[dict[str, FileName], Field(min_length=1)]


def read_model(path: Path) -> GPT:
    """Return the GPT of a folder with config.json and model.safetensors (or parts), in eval mode on the CPU.

    Raises UserError if a file is damaged or pickled, or if GPT does not support a setting. Raises OSError if a file is
    missing.
    """
    config, kind = _read_config(path)
    state: dict[str, Tensor] = {}
    for file in _weight_files(path):
        state.update(read_safetensors(file))
    state = {name: weight for name, weight in state.items() if not name.endswith(NO_WEIGHTS)}
    if kind == "gpt2":
        state = _with_prefix(state)
    try:
        return build_gpt(config, state, kind).eval()
    except UserError as error:
        raise UserError(f"{path / 'config.json'}: {error}") from None


def read_config_and_tokenizer(path: Path) -> tuple[GPTConfig, Tokenizer]:
    """Return the config of the model and the tokenizer in a folder. The weights are not read."""
    config, _ = _read_config(path)
    ends: list[int] = []
    for file in (path / "config.json", path / "generation_config.json"):
        if file.exists():
            ends += checked(read_json(file), Ends, file).get("eos_token_id", [])
    # If a config does not have an end id, transformers writes the end id of GPT-2. This id may exceed the vocabulary.
    ends = [end for end in dict.fromkeys(ends) if end < config.vocab_size]
    return config, read_tokenizer(path, n_vocab=config.vocab_size, ends=ends)


def _read_config(path: Path) -> tuple[GPTConfig, str]:
    file = path / "config.json"
    values = read_json(file)
    try:
        return to_gpt_config(values), values["model_type"]
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _weight_files(path: Path) -> list[Path]:
    if (path / WEIGHTS).exists():
        return [path / WEIGHTS]
    if not (path / INDEX).exists():
        raise UserError(
            f"{path} must have {WEIGHTS} or {INDEX}; pickled weights (.bin) are refused, because a pickle can run code"
        )
    index = checked(read_json(path / INDEX), Index, path / INDEX)
    names = sorted(set(index["weight_map"].values()))
    for name in names:
        if not exists(str(path / name)):
            raise UserError(f"{path / INDEX} lists {name!r:.80}; download this file too")
    return [path / name for name in names]


def _with_prefix(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of GPT-2 with a prefix before their names. Files of the bare model do not have this prefix."""
    if any(name.startswith(GPT2_PREFIX) for name in state):
        return state
    return {
        name if name == "lm_head.weight" else f"{GPT2_PREFIX}{name}": weight
        for name, weight in state.items()
    }
