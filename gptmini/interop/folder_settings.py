"""The settings that a Hugging Face folder came with, kept through imports and training, so that exports have them too.

A GPT and its tokenizer hold what they compute with. A folder says more, for those who use it elsewhere: the ids around
a text, how to sample, how weights were first drawn. All of it is kept as the JSON of its files.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gptmini.tokenizer import LibraryTokenizer, Tokenizer, beginning_of
from gptmini.untrusted import read_json
from gptmini.user_error import UserError

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
FILES = (CONFIG, GENERATION, TOKENIZER)

# What no export says again: names of programs and files of the folder that are not exported with it, and old names of
# what an export says itself.
LEFT_OUT = (
    "auto_map",
    "fast_tokenizer_files",
    "tokenizer_file",
    "vocab_file",
    "torch_dtype",
    "name_or_path",
    "_name_or_path",
)
# Dropouts of a config.json. gptmini does not read them: an imported GPT has none.
DROPOUTS = ("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop")
# Settings that training does not change and GPT does not use. An export keeps them, dropouts if model.dropout is 0.
UNTRAINED = ("sliding_window", *DROPOUTS)
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

Published = Mapping[str, dict[str, Any]]  # the settings of a file, by its name


def read_published(path: Path) -> dict[str, str]:
    """The JSON of each settings file of a folder, by its name; UserError for one that is damaged."""
    return {name: json.dumps(read_json(path / name)) for name in FILES if (path / name).is_file()}


def published_in(header: dict) -> dict[str, str]:
    """What the header of a checkpoint keeps of the settings of the folder that its weights come from; empty for none.

    Raises UserError: what it keeps is no JSON of objects.
    """
    origin = header.get("init_from")
    kept = header.get("published", origin.get("published") if isinstance(origin, dict) else None)
    parsed(kept or {})
    return kept or {}


def parsed(published: Mapping[str, str]) -> Published:
    """The settings by the name of their file; UserError unless they are as read_published gives them."""
    try:
        settings = {name: json.loads(published[name]) for name in FILES if name in published}
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the checkpoint's published must hold JSON ({error})") from None
    if not all(isinstance(values, dict) for values in settings.values()):
        raise UserError("the checkpoint's published must hold JSON objects")
    return {
        name: {key: value for key, value in values.items() if key not in LEFT_OUT}
        for name, values in settings.items()
    }


def special_ids(
    tokenizer: Tokenizer, published: Published, kind: str | None = None
) -> dict[str, Any]:
    """The ids that config.json names: as published, or else of the tokens that the tokenizer names, or else our own.

    An id that was not published for the same model type is left out: transformers has its own for each type.
    """
    named = _named_ids(tokenizer)
    ids: dict[str, Any] = {
        "bos_token_id": named.get("bos_token", beginning_of(tokenizer)),
        "eos_token_id": tokenizer.end_of_text,
        "pad_token_id": named.get("pad_token"),
    }
    theirs = published.get(CONFIG, {})
    if not theirs:
        return ids
    for name in IDS:
        if name in theirs and _fits(theirs[name], tokenizer.n_vocab):
            ids[name] = theirs[name]
        elif name not in theirs and theirs.get("model_type") == kind:
            del ids[name]
    return ids


def with_published(
    exported: dict[str, Any], ids: dict[str, Any], source: dict[str, Any]
) -> dict[str, Any]:
    """The config.json of an export with its ids, and with what no training changes of the config.json that it was.

    Args:
        exported: what the GPT says.
        ids: of special_ids.
        source: what was published; of another model type, nothing of it is taken.
    """
    if source.get("model_type") != exported["model_type"]:
        return exported | ids

    kept = {name: source[name] for name in UNTRAINED if name in source}
    if any(exported.get(name) for name in DROPOUTS):
        kept = {name: value for name, value in kept.items() if name not in DROPOUTS}
    others = {name: value for name, value in source.items() if name not in IDS}
    return others | exported | kept | ids


def _named_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the tokens that the chat template of a tokenizer may name, as bos_token."""
    if not isinstance(tokenizer, LibraryTokenizer) or tokenizer.chat is None:
        return {}
    added = json.loads(tokenizer.text).get("added_tokens") or []
    id_of = {token["content"]: token["id"] for token in added}
    named = {name: token for name, token in tokenizer.chat.items() if isinstance(token, str)}
    return {name: id_of[token] for name, token in named.items() if token in id_of}


def _fits(ids: object, n_vocab: int) -> bool:
    """Whether an id, or each id of a list, is below n_vocab. None, which names no id, fits."""
    several = ids if isinstance(ids, list) else [ids]
    return all(i is None or (type(i) is int and i < n_vocab) for i in several)
