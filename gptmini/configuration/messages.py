"""Describe in one line an error of pydantic, Hydra or the system that a user can fix. This module does not print."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gptmini.configuration.keys import groups, unknown_key
from gptmini.system.errors import TryLater, UserError, ran_out_of_memory, similar, value_text
from gptmini.system.files import install_command
from gptmini.system.process import MISUSE, OUT_OF_RESOURCES
from gptmini.system.world import this_world

# The names that pydantic gives to the members of a union. These names are not part of a key.
MEMBER = re.compile(r"[a-z]+-|(int|float|bool|str|list|dict|none|function|literal|constrained)\b")
# The start of a requirement in a message of pydantic, before the word "be" or "have".
BEGINNING = re.compile(r"(Value error, must |[A-Z][a-z]+ should )")
# Phrases in the messages of pydantic, and shorter words for each phrase.
SHORTER = {
    "a valid boolean": "true or false",
    "a valid integer": "an integer",
    "a valid ": "a ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
# Messages of Hydra, and a plainer message for each of them.
HYDRA_MESSAGES = {
    r"Could not append to config. An item is already at '([^']+)'": (
        "{0} exists already; write {0}=VALUE without a leading +"
    ),
    r"Could not delete from config. '([^']+)'": "cannot remove {0}, which is unknown or null",
    r"LexerNoViableAltException: (.*)": (
        "cannot parse {0}; a key has only letters, digits, dots and underscores"
    ),
    r"Missing mandatory value: (\S+)": "{0} is required; set {0}=VALUE",
    r"Multiple values for ([^ ]+)\. To override": (
        "{0} is chosen twice; write {0}=NAME without a leading +, or override /{0}: NAME in a file"
    ),
}


@contextmanager
def advising_on_memory(remedy: str) -> Iterator[None]:
    """Add a remedy to an out-of-memory error in the block. The remedy of the innermost block is printed."""
    try:
        yield
    except Exception as error:
        if ran_out_of_memory(error):
            error.add_note(remedy)
        raise


def explain(error: BaseException) -> str | None:
    """Return the message for an error that the user can fix, or None if the error must keep its traceback.

    A bug keeps its traceback, and with GPTMINI_TRACEBACK every error does.
    """
    return None if os.environ.get("GPTMINI_TRACEBACK") else _sentence(error)


def _sentence(error: BaseException, key: str = "") -> str | None:
    """Return the message for an error that the user can fix, or None if the error is a bug.

    Libraries' classes are recognized by name: importing the libraries would slow every command down. The key is the
    part of the configuration that was being built, such as callbacks.samples.
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
        return f"out of memory; {notes[0]}"
    if lost_a_rank(error):
        return "another rank ended or did not answer within trainer.timeout seconds; resume the run"
    if isinstance(error, OSError):
        place = error.filename or ("the disk" if error.errno == errno.ENOSPC else "input or output")
        if error.errno == errno.ENOLCK:
            return f"cannot lock {os.fsdecode(place)}; put runs_dir and data_dir on a local disk"
        return f"{os.fsdecode(place)}: {error.strerror or error}"

    if library == "wandb" and "API key" in text:
        return f"{text.rstrip('.')}; to log without an account, set logger.wandb.offline=true"

    # Lightning and Weights & Biases have clear messages for a wrong setting, a missing setting or a missing login.
    is_clear = name in ("MisconfigurationException", "UsageError")
    is_clear |= text.startswith(("Early stopping conditioned on metric", "You set `--ntasks="))
    is_clear |= isinstance(error, ModuleNotFoundError) and "pip install" in text
    # Python's error for an integer of thousands of digits, and Hydra's for a wrong value of its own keys.
    is_clear |= text.startswith(("Exceeds the limit", "Instantiation: _"))
    # Python's error for a path that starts with ~ and an unknown user name.
    is_clear |= text == "Could not determine home directory."
    return text if is_clear else None


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a command that ended with an error: 2 for a mistake that the user can fix.

    It is 1 if memory or the disk ran out, if a rank was lost, if another process trains the run, or for a bug.
    """
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    is_trouble = is_full or ran_out_of_memory(error) or lost_a_rank(error)
    may_succeed_later = is_trouble or isinstance(error, TryLater) or explain(error) is None
    return OUT_OF_RESOURCES if may_succeed_later else MISUSE


def lost_a_rank(error: BaseException) -> bool:
    """Whether communication with another rank failed. gloo does not have its own class of errors."""
    name = type(error).__name__
    is_of_gloo = name == "RuntimeError" and "gloo" in str(error)
    return this_world().size > 1 and (is_of_gloo or name.startswith("Dist"))


def _refused_values(error: Any, part: str) -> str:
    """Return the message for a pydantic.ValidationError: each key, the requirements for it, and the given value.

    pydantic reports one error for each member of a union, so the requirements for a key are joined by "or".
    """
    requirements: dict[str, list[str]] = {}
    values: dict[str, object] = {}
    for refusal in error.errors(include_url=False):
        names = [str(name) for name in refusal["loc"]]
        names = names[:1] + [name for name in names[1:] if not MEMBER.match(name)]
        key = ".".join([part, *names] if part else names)

        if refusal["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            return unknown_key(key)
        if refusal["type"].startswith("missing"):
            return f"{key} is required; set {key}=VALUE"
        if refusal["type"] == "value_error" and not names:
            return str(refusal["ctx"]["error"])
        requirement = BEGINNING.sub("", refusal["msg"], count=1).partition(" after validation")[0]
        for long, short in SHORTER.items():
            requirement = requirement.replace(long, short)
        requirements.setdefault(key, []).append(requirement)
        values.setdefault(key, refusal["input"])

    sentences = []
    for key, listed in requirements.items():
        first, *others = dict.fromkeys(listed)
        alternatives = " or ".join([first, *(other.removeprefix("be ") for other in others)])
        alternatives = alternatives.replace("true or false or ", "true, false or ")
        sentences.append(f"{key} must {alternatives}, got {value_text(values[key])}")
    return "; ".join(sentences)


def _refused_part(error: BaseException) -> str | None:
    """Return the message for a part that Hydra cannot build, or None if the error is a bug in a class of gptmini."""
    cause = error.__cause__
    key = str(error).rpartition("full_key: ")[2].strip()
    blocked = re.match(r"Target '([^']+)' is blocklisted", str(error))
    if blocked is not None:
        return f"cannot call {blocked[1]} for {key}; Hydra blocks functions that can run code"
    if cause is None:
        return _not_composed(error)
    failed = re.match(r"Error loading '([^']+)'", str(cause))
    if failed is not None:
        return f"cannot import {failed[1]} for {key}: {cause.__cause__}"

    sentence = _sentence(cause, key)
    # A class outside gptmini can raise any error, and the message of such an error does not name the key. If an
    # argument is unknown, Python's message names the argument.
    is_of_others = sentence in (None, str(cause)) and "'gptmini." not in str(error)
    if is_of_others or isinstance(cause, ImportError | TypeError):
        return f"cannot create {key}: {cause}"
    return sentence


def _unknown_option(error: Any) -> str:
    # Commands without a configuration import this file, too, and need not import Hydra.
    from gptmini.configuration.texts import override_for

    file = str(error.missing_cfg_file)
    group, _, option = file.partition("/")
    if group not in groups():  # a group inside hydra
        group, _, option = file.rpartition("/")
    if (group, option) == ("hydra/launcher", "joblib"):
        return (
            "hydra/launcher=joblib requires hydra-joblib-launcher; "
            f"run: {install_command('launchers')}"
        )
    override = override_for(group, option)
    if override.startswith("data=text "):
        return f"unknown option {group}={option}; write {override}"

    close = similar(option, error.options)
    fix = f"for FOLDER/{group}/{option}.yaml, add --config-dir FOLDER;"
    if close:
        fix = f"did you mean {group}={close}?"
    message = f"unknown option {group}={option}; {fix} options: {', '.join(error.options)}"

    # Hydra names the file that chooses the option. If this file is in no group, or is one of Hydra's own files, the
    # option was chosen on the command line.
    chooser = re.match(r"In '(?!hydra/)(.+/.+)': ", str(error))
    return message if chooser is None else f"{chooser[1]}.yaml: {message}"


def _not_composed(error: BaseException) -> str:
    """Return the message of Hydra or OmegaConf, without the search path and the object below the message."""
    text = str(error)
    unknown = re.match(r"Could not override '([^']+)'\.", text)
    if unknown is not None:
        return unknown_key(unknown[1])
    for pattern, message in HYDRA_MESSAGES.items():
        match = re.search(pattern, text)
        if match is not None:
            return message.format(*match.groups())

    reason = text.partition("Config search path")[0].partition("\n    full_key")[0]
    key = getattr(error, "full_key", None)
    if reason and key:
        return f"{key}: {reason}"
    return reason or f"cannot compose the configuration ({type(error).__name__})"
