"""Settings of a Hugging Face folder that import, training and export keep for other programs.

These settings are the special ids, the sampling settings and the settings of the tokenizer. A checkpoint stores them as
the JSON of the files in the folder.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Json
from typing_extensions import TypedDict  # pydantic requires this class before Python 3.12

from gptmini.interop.reading import in_a_list
from gptmini.settings import checked
from gptmini.system.untrusted import read_json
from gptmini.tokenizer import Tokenizer, bos_id_of

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
FILES = (CONFIG, GENERATION, TOKENIZER)
# Keys that refer to code and files that are not part of an export.
LEFT_OUT = ("auto_map", "fast_tokenizer_files", "tokenizer_file", "vocab_file")

Published = Mapping[str, dict[str, Any]]  # maps the name of a file to the settings in this file


class _Header(TypedDict):
    published: dict[str, Json[dict[str, Any]]]


def read_source_settings(path: Path) -> dict[str, str]:
    """Return a dict that maps the name of each settings file in a folder to its JSON."""
    return {name: json.dumps(read_json(path / name)) for name in FILES if (path / name).is_file()}


def stored_source_settings(header: dict) -> dict[str, str]:
    """Return what read_source_settings returned for the source of a checkpoint, from the checkpoint's header."""
    origin = header.get("init_from")
    of_origin = origin.get("published") if isinstance(origin, dict) else None
    return header.get("published", of_origin) or {}


def parse_source_settings(published: Mapping[str, str] | None) -> Published:
    """Parse the result of read_source_settings. Raises UserError if it was damaged in a checkpoint."""
    files = checked({"published": published or {}}, _Header)["published"]
    return {
        name: {key: value for key, value in values.items() if key not in LEFT_OUT}
        for name, values in files.items()
    }


def special_ids(tokenizer: Tokenizer, published: Published) -> dict[str, Any]:
    """Return the special ids for config.json: those of the published config, or else those of the tokenizer.

    An id that the published config omits is omitted, because transformers then uses the default of the model type.
    """
    ids: dict[str, Any] = {
        "bos_token_id": bos_id_of(tokenizer),
        "eos_token_id": tokenizer.end_of_text,
        "pad_token_id": None,
    }
    if CONFIG in published:
        ids = {name: published[CONFIG][name] for name in ids if name in published[CONFIG]}
    return with_new_ends(ids, tokenizer, published)


def with_new_ends(
    settings: dict[str, Any], tokenizer: Tokenizer, published: Published
) -> dict[str, Any]:
    """Return settings with the tokenizer's ends added to eos_token_id, except ends that a published file already names.

    A chat template may close its answers with an end at which the original model never stopped.
    """
    old = [i for values in published.values() for i in in_a_list(values.get("eos_token_id"))]
    new = [i for i in tokenizer.more_ends if i not in old]
    ends = in_a_list(settings.get("eos_token_id", tokenizer.end_of_text))
    return settings | {"eos_token_id": [*ends, *new]} if new else settings
