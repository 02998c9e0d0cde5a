"""A folder of a Hugging Face model, read as a GPT and its tokenizer: safetensors and JSON, nothing that runs."""

from pathlib import Path

from torch import Tensor

from gptmini.interop.hugging_face import from_hugging_face, our_config
from gptmini.interop.tokenizer_json import read_tokenizer
from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT
from gptmini.tokenizer import Tokenizer
from gptmini.untrusted import read_json
from gptmini.user_error import UserError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GPT2_PREFIX = "transformer."
# Ends of names of tensors that are no weights: masks in older files of GPT-2, and frequencies of rotary positions.
NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def read_folder(path: Path) -> tuple[GPT, Tokenizer]:
    """The GPT and the tokenizer of a folder.

    Args:
        path: a folder with config.json, model.safetensors or its parts, and tokenizer.json or vocab.json with
            merges.txt, of a model type that GPT computes.

    Raises UserError: a file is damaged or pickled, or holds what GPT does not compute; OSError: a file is missing.
    """
    path = Path(path)
    config = read_json(path / "config.json")
    state = _weights(path)
    if config.get("model_type") == "gpt2":
        state = _with_prefix(state)
    try:
        model = from_hugging_face(config, state)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None

    return model.eval(), _tokenizer_for(model.config, path)


def read_sizes(path: Path) -> tuple[GPTConfig, Tokenizer]:
    """The sizes of the model in a folder, and its tokenizer, without its weights.

    Raises UserError: a file is damaged, or holds what GPT does not compute; OSError: a file is missing.
    """
    path = Path(path)
    try:
        config = our_config(read_json(path / "config.json"))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return config, _tokenizer_for(config, path)


def _tokenizer_for(config: GPTConfig, path: Path) -> Tokenizer:
    """The tokenizer of a folder for a model of these sizes; UserError if it has more ids than the model."""
    kind = read_json(path / "config.json")["model_type"]
    ends: list[int] = []
    for name in ("config.json", "generation_config.json"):
        named = read_json(path / name).get("eos_token_id") if (path / name).exists() else None
        if named is not None:
            ends += named if isinstance(named, list) else [named]
    if any(type(end) is not int for end in ends):
        raise UserError(f"{path}: eos_token_id must be an id or several, got {ends!r:.80}")
    # transformers writes GPT-2's own id where a configuration was given none, however small the model is.
    ends = [end for end in dict.fromkeys(ends) if end < config.vocab_size]
    return read_tokenizer(path, n_vocab=config.vocab_size, ends=ends, kind=kind)


def _weights(path: Path) -> dict[str, Tensor]:
    """The tensors of all files of weights of a folder."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for file in _weight_files(path):
        try:
            weights.update(load_file(file))
        except SafetensorError as error:
            raise UserError(f"{file} must be a whole safetensors file ({error})") from None
    return {name: weight for name, weight in weights.items() if not name.endswith(NO_WEIGHTS)}


def _weight_files(path: Path) -> list[Path]:
    """The files of weights of a folder, which lie in it whatever an index says; UserError if there are none."""
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    if not (path / INDEX).is_file():
        raise UserError(
            f"{path} must have {WEIGHTS}, or {INDEX} with its parts; a pickle of weights (.bin) could run code, and is "
            "not read"
        )
    try:
        names = {Path(name).name for name in read_json(path / INDEX)["weight_map"].values()}
    except (KeyError, AttributeError, TypeError):
        raise UserError(f"{path / INDEX} must have a weight_map from tensors to files") from None
    return [path / name for name in sorted(names)]


def _with_prefix(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of GPT-2 under the names that they have with their head; files of the bare model leave a prefix out."""
    if any(name.startswith(GPT2_PREFIX) for name in state):
        return state
    return {
        name if name == "lm_head.weight" else f"{GPT2_PREFIX}{name}": weight
        for name, weight in state.items()
    }
