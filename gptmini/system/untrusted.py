"""Read files that may come from somebody else. Code in these files never runs. Pipes and devices are never read.

Examples of such files are checkpoints, exported models, prepared tokens, and the configuration of a resumed run.
"""

import io
import json
import math
import pickle
import pickletools
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from gptmini.system.errors import UserError

# libyaml's parser is eight times faster than Python's, but PyYAML can be built without libyaml.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The escape sequence of a lone surrogate. It occurs in file names that are not UTF-8. libyaml's parser refuses it.
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# The start of a run's config.yaml. gptmini 0.2 wrote the last of the three forms in parentheses.
RUN_CONFIG = re.compile(rb"version: [^\n]*(\nbegun:|\ntyped:| # of gptmini)")
HEAD = 1024  # bytes at the start of a file that are enough for RUN_CONFIG

# Maximum bytes of a JSON file. The largest published vocabularies have half as many bytes. If a file of this size
# contains only empty lists, reading it takes 1.6 GB of memory.
LARGEST_JSON = 2**26
LARGEST_YAML = 2**20  # bytes; the configuration of a run is about a hundred times smaller
DEEPEST_YAML = 100  # levels of nested dicts and lists; the configuration of a run has five levels
PLAIN = (str, int, float, bool, type(None))  # types of the values in a configuration


def read_text(path: Path) -> str:
    """Read a UTF-8 file with line feeds as line ends. Raise UserError if it is too large or is not UTF-8."""
    try:
        return io.TextIOWrapper(io.BytesIO(_content(path, LARGEST_JSON)), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error})") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raise UserError if the file is too large or contains something else."""
    content = _content(path, LARGEST_JSON)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error})") from None

    if not isinstance(values, dict):
        raise UserError(f"{path} must contain a JSON object, got {type(values).__name__}")
    return values


def read_yaml(path: Path, *, trusted: bool = False) -> dict[str, Any]:
    """Read the mapping in a YAML file. Return an empty dict for an empty file.

    If the file is not trusted, its values must be plain, and aliases are refused, because a few can expand to
    terabytes. Raises UserError for other contents or a file that is too large.
    """
    text = _content(path, LARGEST_YAML)
    loader = yaml.SafeLoader if SURROGATE.search(text) else LOADER

    try:
        if not trusted:
            _check_events(yaml.parse(text, Loader=loader))
        tree = yaml.load(text, Loader=loader) or {}
        if not isinstance(tree, dict):
            raise ValueError("the file has no keys")
        odd = [value for _, value in nodes(tree) if type(value) not in (*PLAIN, dict, list)]
        if not trusted and odd:
            raise ValueError(f"the file contains a {type(odd[0]).__name__}")
    except Exception as error:  # PyYAML can raise any error when it converts a date or a number
        reason = " ".join(str(error).split())
        raise UserError(f"{path} must be YAML with keys and plain values ({reason})") from None
    return tree


def is_run_config(path: Path) -> bool:
    """Whether gptmini wrote a config.yaml into the folder of a run. Other programs write files of this name, too."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return RUN_CONFIG.match(file.read(HEAD)) is not None


def read_pickle(path: Path) -> Any:
    """Read a pickle of plain values. Raise pickle.UnpicklingError if the pickle names a class or a function.

    Raises ValueError if a length or a memo index exceeds the size of the file. Python would allocate this much memory.
    """
    content = _content(path, LARGEST_JSON)
    for operation, argument, _ in pickletools.genops(content):
        is_memo = isinstance(argument, int) and operation.name.endswith("PUT")
        if is_memo and argument > len(content):
            raise ValueError(f"memo index {argument} is larger than the file")
    return _PlainUnpickler(io.BytesIO(content)).load()


def nodes(tree: object, above: tuple = ()) -> Iterator[tuple[tuple, object]]:
    """Yield the path of keys and the value of each entry in a tree of dicts and lists, parents first."""
    entries: Any = ()
    if isinstance(tree, dict):
        entries = tree.items()
    elif isinstance(tree, list):
        entries = enumerate(tree)

    for key, value in entries:
        yield (*above, key), value
        yield from nodes(value, (*above, key))


def check_plain_folder(folder: Path) -> None:
    """Raise UserError if a folder contains anything except regular files and folders, at any depth.

    Writing through a link could change any file of the user, and reading a pipe could block for ever. The folder wandb
    may contain links: Weights & Biases makes them, and gptmini writes nothing there.
    """
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        is_of_wandb = stat.S_ISLNK(mode) and folder / "wandb" in path.parents
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode) and not is_of_wandb:
            raise UserError(
                f"{path} must be a regular file or a folder, not a link, a pipe or a device; "
                "replace it with a copy of the file"
            )


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        raise pickle.UnpicklingError(f"expected only plain values, got {module}.{name}")


def file_size(path: Path, most: float = math.inf) -> int:
    """Return the size of a file in bytes. Follow links, because the cache of the Hugging Face hub contains links.

    Raises UserError if the file has more than `most` bytes, or is a pipe or a device, which could block a reader.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is not a regular file")
    if status.st_size > most:
        raise UserError(f"{path} must have at most {most:,} bytes, got {status.st_size:,}")
    return status.st_size


def _content(path: Path, most: int) -> bytes:
    size = file_size(path, most)
    with path.open("rb") as file:
        return file.read(size)


def _check_events(events: Iterable[yaml.Event]) -> None:
    """Raise ValueError if YAML has aliases, or if it is nested so deeply that libyaml would overflow the stack."""
    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("the file has YAML aliases such as *name")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_YAML:
            raise ValueError(f"the file is nested deeper than {DEEPEST_YAML} levels")
