"""One line for an error of pydantic, Hydra or the system that a user can mend; nothing here prints."""

import difflib
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gptmini.user_error import UserError
from gptmini.world import this_world

LONGEST_VALUE = 80  # characters of a value in an error message; a longer one is cut
# The names that pydantic gives to the members of a union, which are no part of a key.
MEMBER = re.compile(r"[a-z]+-|(int|float|bool|str|list|dict|none|function|literal|constrained)\b")
# How pydantic begins a requirement, before what the value must be or have.
BEGINNING = re.compile(r"(Value error, must |[A-Z][a-z]+ should )")


@contextmanager
def advising_on_memory(remedy: str) -> Iterator[None]:
    """Add a remedy to an out-of-memory error in the block. The message shows that of the innermost block."""
    try:
        yield
    except Exception as error:
        if ran_out_of_memory(error):
            error.add_note(remedy)
        raise


def explain(error: BaseException) -> str | None:
    """The message for a user who can mend the cause of an error; None if the error is to keep its traceback.

    A bug keeps its traceback, and every error does while GPTMINI_TRACEBACK is set.
    """
    return None if os.environ.get("GPTMINI_TRACEBACK") else _sentence(error)


def _sentence(error: BaseException, key: str = "") -> str | None:
    """The message for a user who can mend the cause of an error; None if the error is a bug.

    Classes of libraries are told by their names: importing a library here would slow every command down.

    Args:
        error: what was raised.
        key: the part of the configuration that was being made, as callbacks.samples; empty for its root.
    """
    name = type(error).__name__
    library = type(error).__module__.partition(".")[0]
    text = str(error)

    if isinstance(error, UserError):
        return text
    if library.startswith("pydantic") and name == "ValidationError":
        return _refused_values(error, key)
    if name == "InstantiationException":
        return _refused_part(error)
    if name == "MissingConfigException" and getattr(error, "options", None):
        return _unknown_option(error)
    if library in ("hydra", "omegaconf", "antlr4", "yaml"):
        return _not_composed(error)
    if ran_out_of_memory(error):
        notes = getattr(error, "__notes__", None) or ["use a machine with more memory"]
        return f"memory ran out; {notes[0]}"
    if lost_a_rank(error):
        return "another rank is gone, or did not answer within trainer.timeout"
    if isinstance(error, OSError):
        place = error.filename or ("the disk" if error.errno == errno.ENOSPC else "input or output")
        return f"{os.fsdecode(place)}: {error.strerror or error}"

    # Lightning and Weights & Biases say in their own words what does not fit, is missing, or wants a login.
    is_told = name in ("MisconfigurationException", "UsageError")
    is_told |= text.startswith(("Early stopping conditioned on metric", "You set `--ntasks="))
    is_told |= isinstance(error, ModuleNotFoundError) and "pip install" in text
    # Python says so of a whole number of thousands of digits, which nobody means.
    is_told |= isinstance(error, ValueError) and text.startswith("Exceeds the limit")
    is_told |= isinstance(error, RecursionError)
    # Python says so of a path that begins with ~ and the name of nobody.
    is_told |= text == "Could not determine home directory."
    return text if is_told else None


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the processor or of a GPU did not suffice; torch has no common class for that."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def lost_a_rank(error: BaseException) -> bool:
    """Whether an exchange with another rank has failed; gloo has no class of its own for that."""
    name = type(error).__name__
    is_gloos = name == "RuntimeError" and "gloo" in str(error)
    return this_world().size > 1 and (is_gloos or name.startswith("Dist"))


def _refused_values(error: Any, part: str) -> str:
    """The message for a pydantic.ValidationError: for each key its requirements, and the value that was given.

    A union refuses a value once for each of its members, so requirements of one key are joined by "or".
    """
    requirements: dict[str, list[str]] = {}
    values: dict[str, object] = {}
    for refusal in error.errors(include_url=False):
        names = [str(name) for name in refusal["loc"]]
        own = names[:1] + [name for name in names[1:] if not MEMBER.match(name)]
        key = ".".join([part, *own] if part else own)

        if refusal["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            return _no_key(key)
        if refusal["type"].startswith("missing"):
            return f"{key} must be given, as in {key}=VALUE"
        if refusal["type"] == "value_error" and not own:
            return str(refusal["ctx"]["error"])
        wanted = BEGINNING.sub("", refusal["msg"], count=1)
        requirements.setdefault(key, []).append(wanted)
        values.setdefault(key, refusal["input"])

    sentences = []
    for key, wanted in requirements.items():
        first, *others = dict.fromkeys(wanted)
        alternatives = " or ".join([first, *(other.removeprefix("be ") for other in others)])
        sentences.append(f"{key} must {alternatives}, got {shown(values[key])}")
    return "; ".join(sentences)


def shown(value: object) -> str:
    """The text that stands for a value in an error message."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _no_key(key: str) -> str:
    """The message for a key that no configuration has."""
    # This module reads all configurations, which only this mistake needs.
    from gptmini.configuration.keys import no_key

    return no_key(key)


def _refused_part(error: BaseException) -> str | None:
    """The message for a part of a configuration that Hydra could not make; None if a class of gptmini has a bug."""
    cause = error.__cause__
    key = str(error).rpartition("full_key: ")[2].strip()
    if cause is None:
        return _not_composed(error)
    if isinstance(cause, ImportError):
        return f"{key} cannot be made: {cause}"
    if isinstance(cause, TypeError):
        return f"{key} does not fit: {cause}"

    sentence = _sentence(cause, key)
    # Somebody else's class can raise anything, and knows no key.
    if sentence in (None, str(cause)) and "'gptmini." not in str(error):
        return f"{key} cannot be made: {cause}"
    return sentence


def _unknown_option(error: Any) -> str:
    """The message for Hydra's MissingConfigException of an option that its group does not have."""
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    close = difflib.get_close_matches(option, error.options, n=1)
    nearest = f"; the nearest is {group}={close[0]}" if close else ""
    message = (
        f"{group} must be one of {', '.join(error.options)}, got {option or 'no name'}{nearest}"
    )

    # Hydra names the file that chooses the option. One that lies in no group is the command's own, and stands for what
    # was typed.
    chooser = re.match(r"In '(.+/.+)': ", str(error))
    return message if chooser is None else f"{chooser[1]}.yaml: {message}"


def _not_composed(error: BaseException) -> str:
    """The message for an error of Hydra or OmegaConf, without the search path and the object that they list below."""
    text = str(error)
    unknown = re.match(r"Could not override '([^']+)'\.", text)
    if unknown is not None:
        return _no_key(unknown[1])
    unread = re.match(r"LexerNoViableAltException: (.*)", text)
    if unread is not None:
        return f"{unread[1]} cannot be read: a key has letters, digits, dots and underscores"
    missing = re.search(r"Missing mandatory value: (\S+)", text)
    if missing is not None:
        return f"{missing[1]} must be given, as in {missing[1]}=VALUE"

    reason = text.partition("Config search path")[0].partition("\n    full_key")[0]
    key = getattr(error, "full_key", None)
    if reason and key:
        return f"{key}: {reason}"
    return reason or f"the configuration cannot be composed ({type(error).__name__})"
