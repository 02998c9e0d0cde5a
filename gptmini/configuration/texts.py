"""Find the texts among the words of a command line: gptmini train my.txt means data=text data.path=my.txt."""

import glob
import shlex
from collections.abc import Sequence
from pathlib import Path

from gptmini.configuration.compose import as_override, quoted
from gptmini.configuration.keys import files_of_group, groups, known_keys
from gptmini.configuration.request import key_of
from gptmini.system.errors import UserError, did_you_mean, value_text
from gptmini.system.files import exists, expand_home, is_address
from gptmini.system.untrusted import is_run_config


def texts_as_overrides(words: Sequence[str]) -> list[str]:
    """Replace the texts among the words of a command line by data=text and data.path=. Several texts become a list.

    Raises UserError if a text does not exist or is a run, or if another word sets data or data.path.
    """
    texts = [word for word in words if not is_override(word)]
    others = [word for word in words if is_override(word)]
    if not texts:
        return others

    _check_spaces(words)
    for text in texts:
        _check_text(text, words)
    for line in others:
        is_other_data = key_of(line) == "data" and line != "data=text"
        if is_other_data or key_of(line) == "data.path":
            raise UserError(f"give either {line} or {texts[0]}, not both")

    texts = [_as_path(text) for text in texts]
    path = as_override("data.path", texts[0])
    if len(texts) > 1:
        path = f"data.path=[{','.join(map(quoted, texts))}]"
    return ["data=text", path, *(line for line in others if line != "data=text")]


def _as_path(text: str) -> str:
    """Return a path that names the same text if gptmini expands ~ and OmegaConf resolves ${ in it."""
    if text.startswith("~") and exists(text):
        text = str(Path(text).absolute())
    if "${" in text and Path(text).is_file():
        # The configuration is resolved more than once, so OmegaConf's own escape would not last.
        text = glob.escape(text).replace("${", "[$]{")
    return text


def without_keys(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of --help that name a key or a group, and the other words. Keys precede files."""
    keys = [word for word in words if "=" not in word and (_is_key(word) or not _exists(word))]
    return keys, [word for word in words if word not in keys]


def is_override(word: str) -> bool:
    """Whether a word has an equals sign, or is ~KEY. Every other word, the name of a file and an address are texts."""
    is_text = is_address(word) or (exists(word) and Path(word).is_file())
    removes_key = word.startswith("~") and not word.startswith("~/")
    return not is_text and ("=" in word or removes_key)


def override_for(key: str, value: str) -> str:
    """Return the override that sets a key, quoted for a shell, for a message about a wrong word.

    A file as data or data.path gives both overrides that train on it. An override such as logger=wandb stays unchanged.
    """
    if "=" in key:
        return key
    is_file = _exists(value) or "/" in value or Path(value).suffix != ""
    if key in ("data", "data.path") and is_file:
        return shlex.join(["data=text", f"data.path={value}"])
    return shlex.quote(f"{key}={value}")


def _exists(word: str) -> bool:
    is_special = word == "-" or glob.has_magic(word) or is_address(word)
    return is_special or exists(word) or exists(expand_home(word))


def _is_key(word: str) -> bool:
    return word in known_keys() or word in groups()


def _check_spaces(words: Sequence[str]) -> None:
    """Raise UserError if a shell has split an override or a list at its spaces."""
    for i, word in enumerate(words):
        if _exists(word):
            continue
        if not is_override(word) and word.endswith(("]", "}", ",")):
            raise UserError(
                f"an override must be one word, got {word}; quote a list or a mapping: 'key=[a, b]'"
            )
        is_cut = word.endswith("=") and not all(map(is_override, words[i + 1 : i + 2]))
        if is_cut or word.startswith("="):
            around = " ".join(words[max(i - 1, 0) : i + 2])
            raise UserError(f"an override must be KEY=VALUE without spaces, got {around}")


def _check_text(word: str, words: Sequence[str]) -> None:
    if not _exists(word):
        raise UserError(_not_a_text(word))
    if exists(word) and is_run_config(Path(word) / "config.yaml"):
        resume, init_from = override_for("resume", word), override_for("init_from", word)
        raise UserError(f"{word} is a run, not a text; write {resume} or {init_from}")


def _not_a_text(word: str) -> str:
    """Return the message for a word without a file. It may mean a key, an option, or a file with a similar name."""
    if _is_key(word):
        value = "NAME" if word in groups() else "VALUE"
        return f"{word} is a key, not a text; write {word}={value}"
    options = [
        f"{group}={word}"
        for group in groups()
        if any(file.stem == word for file in files_of_group(group, None))
    ]
    if options:
        return f"{word} is an option, not a text; write {' or '.join(options)}"

    path = Path(word)
    names = []
    if path.name and exists(str(path.parent)) and path.parent.is_dir():
        names = [shlex.quote(str(path.with_name(other.name))) for other in path.parent.iterdir()]
    fix = did_you_mean(word, names, otherwise="quote a name with spaces")
    return f"data.path must match a file or a folder, got {value_text(word)}; {fix}"
