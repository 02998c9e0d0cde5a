"""A user's mistakes, told in one line."""

import argparse
import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from gptmini.user_error import UserError

MISUSE = 2  # exit code of a mistake that the user can mend, as argparse's
STDOUT = "stdout"  # the name that an error of writing there has
INTERRUPTED = 130  # exit code after Ctrl-C: 128 + the number of SIGINT


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn a user's mistake into one line on stderr and exit code 2; a bug keeps its traceback.

    With the environment variable GPTMINI_TRACEBACK set, every error keeps its traceback. This helps where the one
    line seems to hide a bug.
    """
    _name_stdout()
    for stream in (sys.stdout, sys.stderr):
        # A closed stream is None, and a stream that a caller put in place may lack this method.
        if hasattr(stream, "reconfigure"):
            # Print an escape sequence for a character that the system's encoding lacks, instead of failing.
            stream.reconfigure(errors="backslashreplace")

    try:
        with _flushing_stdout():
            yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        # The program that reads stdout, such as head, has closed the pipe and needs no more.
        if isinstance(error, BrokenPipeError) and error.filename == STDOUT:
            sys.exit(0)
        line = explain(error)
        if line is None:
            raise
        print_mistake(line)
        sys.exit(MISUSE)


class _Stdout(io.FileIO):
    """The file behind stdout, which gives its name to errors of writing."""

    def write(self, data: Any) -> int | None:
        """Write bytes; an OSError names stdout."""
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STDOUT
            raise


def _name_stdout() -> None:
    """Let errors of writing to stdout name it; a stdout that a caller or a terminal of Windows has put there stays."""
    stdout = sys.stdout
    if type(stdout) is not io.TextIOWrapper:
        return
    # With PYTHONUNBUFFERED set, Python writes to the file itself.
    raw = getattr(stdout.buffer, "raw", stdout.buffer)
    if type(raw) is not io.FileIO:
        return

    stdout.flush()
    stream: Any = _Stdout(raw.fileno(), "w", closefd=False)
    if stdout.buffer is not raw:
        stream = io.BufferedWriter(stream)
    sys.stdout = io.TextIOWrapper(
        stream,
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering,
        write_through=stdout.write_through,
    )


@contextmanager
def _flushing_stdout() -> Iterator[None]:
    """Flush stdout after the block; discard what a full disk did not take, so that Python's own flush cannot fail."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.filename == STDOUT:
            _discard_stdout()
        raise


def _discard_stdout() -> None:
    """Send stdout to the null device, where the flush with which Python exits cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def naming_keys(**folders: str) -> Iterator[None]:
    """Turn a read-only place into a mistake that names the keys which lead elsewhere.

    Args:
        folders: the folder that each key names, as runs_dir="runs". Without any the error stays as it is.

    Raises UserError: the block could not make or write one of the folders, or something in one.
    """
    try:
        yield
    except OSError as error:
        is_read_only = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
        if not is_read_only or not any(_concerns(error, folder) for folder in folders.values()):
            raise
        # Of several folders that would be made in the same place, naming one elsewhere would not be enough.
        place = _existing(error.filename)
        keys = [
            f"{key}="
            for key, folder in folders.items()
            if _concerns(error, folder) or _existing(folder) == place
        ]
        verb = "names another folder" if len(keys) == 1 else "name other folders"
        raise UserError(f"{_explained(error)}; {' and '.join(keys)} {verb}") from error


def _concerns(error: OSError, folder: str) -> bool:
    """Whether an error names a folder, something in it, or a folder above it that had to be made."""
    if not isinstance(error.filename, str):
        return False
    named = Path(error.filename).absolute()
    own = Path(folder).absolute()
    return named.is_relative_to(own) or own.is_relative_to(named)


def _existing(path: str) -> Path:
    """A path, or where it does not exist the nearest folder above it that does."""
    place = Path(path).absolute()
    return next(folder for folder in (place, *place.parents) if folder.exists())


def print_mistake(mistake: str) -> None:
    """Print a mistake as one line on stderr; nothing where stderr is closed, since print would take stdout instead."""
    if sys.stderr is None:
        return
    print(f"error: {' '.join(mistake.split())}", file=sys.stderr, flush=True)


def refuse(message: str) -> NoReturn:
    """Print what argparse finds wrong with a command line as one line on stderr, and exit with code 2."""
    print_mistake(f"{message}; --help lists what there is")
    sys.exit(MISUSE)


def explain(error: BaseException) -> str | None:
    """The message for a user who can mend the cause of an error; None if the error is to keep its traceback.

    A bug keeps its traceback, and every error does while GPTMINI_TRACEBACK is set.
    """
    return None if os.environ.get("GPTMINI_TRACEBACK") else _explained(error)


def _explained(error: BaseException) -> str | None:
    """The message for a user who can mend the cause of an error; None if the error is a bug."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, RecursionError):
        return "what was typed or read is nested too deeply"
    # Python's own words for a whole number that is too long to be read.
    if isinstance(error, ValueError) and str(error).startswith("Exceeds the limit"):
        return f"a whole number must have at most {sys.get_int_max_str_digits()} digits"
    if ran_out_of_memory(error):
        remedy = "lower batch_size (trainer.batch_size when training) or the model's sizes"
        return f"memory ran out; {remedy}"

    # Classes of libraries are told by their names: importing a library here would slow every command down. Hydra's
    # errors are asked for before OSError, because some of them derive from OSError.
    name = type(error).__name__
    if name == "InstantiationException":
        return _explain_part(error)
    if name == "MissingConfigException" and getattr(error, "options", None):
        return _explain_choice(error)
    if type(error).__module__.startswith(("hydra.", "omegaconf.")):
        return _explain_hydra(error)
    if isinstance(error, OSError):
        return f"{os.fsdecode(error.filename or 'input or output')}: {error.strerror or error}"

    # Lightning explains in its own words why a callback or a logger does not fit, or which package it needs.
    if name == "MisconfigurationException":
        return str(error)
    if str(error).startswith("Early stopping conditioned on metric"):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and "pip install" in str(error):
        return str(error)
    if str(error).startswith("You set `--ntasks="):
        return str(error)
    # Weights & Biases asks for a login.
    if name == "UsageError" and type(error).__module__.startswith("wandb."):
        return str(error)
    return None


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the processor or of a GPU did not suffice; torch has no common class for that."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _explain_hydra(error: BaseException) -> str:
    """The message for an error of Hydra or OmegaConf, without the search path and the key that Hydra lists below."""
    name = type(error).__name__
    reason = str(error).partition("Config search path")[0].partition("\n    full_key")[0]
    if not reason:
        reason = f"the configuration cannot be composed ({name})"
    key = str(error).partition("\n    full_key: ")[2].partition("\n")[0]
    if key and key not in reason:
        reason = f"{key}: {reason}"
    if "override" in name.lower():
        reason += "; a list or a mapping holds other characters in quotes: 'key=[\"a b\"]'"
    return reason


def _explain_choice(error: Any) -> str:
    """The message for Hydra's MissingConfigException of an option that its group does not have."""
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    message = f"{group} must be one of {', '.join(error.options)}, got {option or 'no name'}"

    # Hydra names the file that chooses the option. One that lies in no group is the command's own, and stands for what
    # was typed.
    chooser = re.match(r"In '(.+/.+)': ", str(error))
    return message if chooser is None else f"{chooser[1]}.yaml: {message}"


def _explain_part(error: BaseException) -> str | None:
    """The message for a part of a configuration that Hydra could not make; None if a class of gptmini has a bug."""
    cause = error.__cause__
    key = str(error).rpartition("full_key: ")[2]
    if isinstance(cause, TypeError):
        return f"{key} does not fit: {cause}"
    if isinstance(cause, ImportError):
        return f"{key} cannot be made: {cause}"

    explained = None if cause is None else _explained(cause)
    if explained is None and "'gptmini." not in str(error):
        return str(error)
    return explained


class Parser(argparse.ArgumentParser):
    """An argparse parser whose complaints are one line on stderr, as for every other mistake."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line as one line, and exit with code 2."""
        refuse(message)


class Once(argparse.Action):
    """The action of an option that can be given only once, where the last of several would hide the others."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Keep the value; refuse a second one."""
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} must be given once")
        setattr(namespace, self.dest, values)


def path_argument(text: str) -> Path:
    """The path that an option names, as a type of argparse; refuses what path_of refuses."""
    try:
        return path_of(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def path_of(text: str) -> Path:
    """The path that a text names; ~ at its beginning is the home folder.

    Raises UserError: an empty name, which would be the folder here, or the home folder of a user that is not there.
    """
    if not text:
        raise UserError("must be a file or a folder, got an empty name")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(
            f"must be a file or a folder, got {text}, and no home folder of that user is known"
        ) from None
