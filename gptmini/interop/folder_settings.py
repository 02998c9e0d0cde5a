"""Settings of a Hugging Face folder that import, training and export keep.

A GPT and its tokenizer store only the settings that they use. A folder has more settings for other programs, such as
the ids around a text, sampling settings and the initialisation. gptmini keeps these settings as the JSON of the files
in the folder.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gptmini.interop.reading import in_a_list
from gptmini.tokenizer import LibraryTokenizer, Tokenizer, bos_id_of
from gptmini.untrusted import read_json
from gptmini.user_error import UserError

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
FILES = (CONFIG, GENERATION, TOKENIZER)

# Keys that are not exported. Some of these keys refer to code and files that are not part of an export. The other keys
# are old names of keys that an export contains.
LEFT_OUT = (
    "auto_map",
    "fast_tokenizer_files",
    "tokenizer_file",
    "vocab_file",
    "torch_dtype",
    "name_or_path",
    "_name_or_path",
)
# Dropouts in config.json. gptmini does not read these dropouts, because an imported GPT has no dropout.
DROPOUTS = ("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop")
# Settings that training does not change and that GPT does not use. An export keeps these settings. It keeps the
# dropouts only if model.dropout is 0.
UNTRAINED = ("sliding_window", *DROPOUTS)
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

Published = Mapping[str, dict[str, Any]]  # maps the name of a file to the settings in this file


def read_source_settings(path: Path) -> dict[str, str]:
    """Return a dict that maps the name of each settings file in a folder to its JSON.

    Raises UserError if a file is damaged.
    """
    return {name: json.dumps(read_json(path / name)) for name in FILES if (path / name).is_file()}


def stored_source_settings(header: dict) -> dict[str, str]:
    """Return the settings of the folder that the weights of a checkpoint came from.

    The header of the checkpoint stores these settings. The result is empty if the header has no such settings. Raises
    UserError if the settings are not JSON objects.
    """
    origin = header.get("init_from")
    kept = header.get("published", origin.get("published") if isinstance(origin, dict) else None)
    parse_source_settings(kept or {})
    return kept or {}


def parse_source_settings(published: Mapping[str, str]) -> Published:
    """Parse the result of read_source_settings. Return a dict that maps file names to settings.

    Raises UserError if the result of read_source_settings is not valid.
    """
    try:
        settings = {name: json.loads(published[name]) for name in FILES if name in published}
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the field 'published' of the checkpoint must be JSON ({error})") from None
    if not all(isinstance(values, dict) for values in settings.values()):
        raise UserError("the field 'published' of the checkpoint must contain only JSON objects")
    return {
        name: {key: value for key, value in values.items() if key not in LEFT_OUT}
        for name, values in settings.items()
    }


def special_ids(
    tokenizer: Tokenizer, published: Published, kind: str | None = None
) -> dict[str, Any]:
    """Return the special ids for config.json.

    An id of the published config takes precedence over the id of a named token of the tokenizer. The id of a named
    token takes precedence over the id that gptmini would choose. If the published config has the same model type but
    does not have an id, this id is omitted, because transformers then uses the default of the model type.
    """
    named = _named_ids(tokenizer)
    ids: dict[str, Any] = {
        "bos_token_id": named.get("bos_token", bos_id_of(tokenizer)),
        "eos_token_id": tokenizer.end_of_text,
        "pad_token_id": named.get("pad_token"),
    }
    theirs = published.get(CONFIG, {})
    for name in IDS if theirs else ():
        if name in theirs and _fits(theirs[name], tokenizer.n_vocab):
            ids[name] = theirs[name]
        elif name not in theirs and theirs.get("model_type") == kind:
            del ids[name]
    return with_new_ends(ids, tokenizer, published)


def with_new_ends(
    settings: dict[str, Any], tokenizer: Tokenizer, published: Published
) -> dict[str, Any]:
    """Return settings whose eos_token_id also has the ends of a tokenizer that no published file has.

    Such an end closes the answers in a chat template, although the original model never stopped there.
    """
    known = [i for values in published.values() for i in in_a_list(values.get("eos_token_id"))]
    new = [i for i in tokenizer.more_ends if i not in known]
    ends = in_a_list(settings.get("eos_token_id", tokenizer.end_of_text))
    return settings | {"eos_token_id": [*ends, *new]} if new else settings


def with_source_settings(
    exported: dict[str, Any], ids: dict[str, Any], source: dict[str, Any]
) -> dict[str, Any]:
    """Return the config.json of an export. It has the special ids and the settings that training does not change.

    Args:
        exported: the config of the GPT.
        ids: the result of special_ids.
        source: the config.json of the original folder. It is ignored if it has a different model type.
    """
    if source.get("model_type") != exported["model_type"]:
        return exported | ids

    kept = {name: source[name] for name in UNTRAINED if name in source}
    if any(exported.get(name) for name in DROPOUTS):
        kept = {name: value for name, value in kept.items() if name not in DROPOUTS}
    others = {name: value for name, value in source.items() if name not in IDS}
    return others | exported | kept | ids


def _named_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the named tokens that the chat template of a tokenizer may use, such as bos_token."""
    if not isinstance(tokenizer, LibraryTokenizer) or tokenizer.chat is None:
        return {}
    added = json.loads(tokenizer.text).get("added_tokens") or []
    id_of = {token["content"]: token["id"] for token in added}
    named = {name: token for name, token in tokenizer.chat.items() if isinstance(token, str)}
    return {name: id_of[token] for name, token in named.items() if token in id_of}


def _fits(ids: object, n_vocab: int) -> bool:
    """Return whether an id, or each id in a list of ids, is less than n_vocab or None."""
    several = ids if isinstance(ids, list) else [ids]
    return all(i is None or (type(i) is int and i < n_vocab) for i in several)
