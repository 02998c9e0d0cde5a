"""Find the texts among the words of a command line: gptmini train my.txt means data=text data.path=my.txt."""

import difflib
import glob
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from gptmini.configuration.keys import files_of_group, groups, known_keys, nearest_key
from gptmini.configuration.overrides import as_override, key_of, list_override
from gptmini.user_error import UserError

SPLIT_LIST = ("]", "}", ",")  # the ends of the words into which a shell splits a list or a mapping


def texts_as_overrides(words: Sequence[str]) -> list[str]:
    """Replace the texts among the words of a command line by data=text and data.path=.

    Several texts become a list. Hydra's grammar is not applied to the other words.

    Raises UserError if a text does not exist or is a run, or if another word sets data or data.path.
    """
    texts = [word for word in words if is_text(word)]
    others = [word for word in words if not is_text(word)]
    if not texts:
        return others

    _check_spaces(words)
    for text in texts:
        _check_text(text, texts)
    for line in others:
        is_other_data = key_of(line) == "data" and line != "data=text"
        if is_other_data or key_of(line) == "data.path":
            raise UserError(f"give either {line} or {texts[0]}, not both")

    one = as_override("data.path", texts[0])
    path = one if len(texts) == 1 else list_override("data.path", texts)
    return ["data=text", path, *(line for line in others if line != "data=text")]


def without_keys(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of --help that name a key or a group, and the other words.

    A word that is both a key and a file means the key.
    """
    keys = [word for word in words if "=" not in word and (_is_key(word) or not _exists(word))]
    return keys, [word for word in words if word not in keys]


def is_text(word: str) -> bool:
    """Whether a word of a command line names a text.

    A text has no equals sign, or is the exact name of a file. The word ~KEY removes a key.
    """
    is_file = os.path.isfile(word)  # noqa: PTH113, because Path raises an error for a long list
    removes_key = word.startswith("~") and not word.startswith("~/")
    return is_file or not ("=" in word or removes_key)


def override_for(key: str, value: str) -> str:
    """Return the override that sets a key, for the message about a wrong word.

    If the value of data or data.path is a file, return both overrides that train on this file.
    """
    is_file = _exists(value) or "/" in value or Path(value).suffix != ""
    if key in ("data", "data.path") and is_file:
        return f"data=text data.path={value}"
    return f"{key}={value}"


def _exists(word: str) -> bool:
    """Whether a word is standard input, a glob, or the path of an existing file or folder."""
    path = os.path.expanduser(word)  # noqa: PTH111, because an unknown ~user stays unchanged
    return word == "-" or glob.has_magic(word) or os.path.exists(path)  # noqa: PTH110


def _is_key(word: str) -> bool:
    """Whether a word is a key or a group of gptmini's configurations."""
    return word in known_keys() or word in groups()


def _check_spaces(words: Sequence[str]) -> None:
    """Raise UserError if a shell has split an override or a list at its spaces."""
    for i, word in enumerate(words):
        if _exists(word):
            continue
        if is_text(word) and word.endswith(SPLIT_LIST):
            raise UserError(
                f"an override must be one word, got {word}; quote a list or a mapping: 'key=[a, b]'"
            )

        if word == "=":
            parts = words[max(i - 1, 0) : i + 2]
        elif word.startswith("="):
            parts = words[max(i - 1, 0) : i + 1]
        elif word.endswith("=") and any(map(is_text, words[i + 1 : i + 2])):
            parts = words[i : i + 2]
        else:
            continue
        key, _, value = "".join(parts).partition("=")
        meant = key if _is_key(key) else nearest_key(key) or key
        raise UserError(
            f"an override must have no spaces, got {' '.join(parts)}; write {meant}={value}"
        )


def _check_text(word: str, texts: Sequence[str]) -> None:
    """Raise UserError if a word among the texts does not exist, or if it is a run.

    Suggest a key, an option or a file with a similar name.
    """
    from gptmini.runs import is_run

    if not _exists(word):
        meant = next(_meanings(word, texts), "")
        fix = f"; did you mean {meant}?" if meant else ""
        raise UserError(f"data.path must match a file or a folder, got {shlex.quote(word)}{fix}")
    if is_run(Path(word)):
        raise UserError(f"{word} is a run, not a text; write resume={word} or init_from={word}")


def _meanings(word: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield what a word without a file may mean: a group, a key, an option, or a file with a similar name."""
    if word in groups():
        yield f"{word}=NAME"
    if word in known_keys():
        yield f"{word}=VALUE"
    options = [
        f"{group}={word}"
        for group in groups()
        if any(file.stem == word for file in files_of_group(group, None))
    ]
    if options:
        yield " or ".join(options)

    whole = " ".join(texts)
    if _exists(whole):
        yield shlex.quote(whole)
    path = Path(word)
    if path.parent.is_dir():
        names = [str(path.with_name(other.name)) for other in path.parent.iterdir()]
        yield from map(shlex.quote, difflib.get_close_matches(word, names, n=1))
