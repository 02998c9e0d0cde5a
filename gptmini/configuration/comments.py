"""Read the comments that explain the keys in the YAML files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gptmini.untrusted import LOADER


def comments_of(file: Path) -> tuple[str, dict[str, str]]:
    """Return the comment that describes a configuration file, and the comments on its keys by dotted name.

    The comment on a key follows the value of the key on the same line, or is on the lines directly above the key. The
    comment at the top of a file describes the file.
    """
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    n_first = 0
    while n_first < len(lines) and lines[n_first].startswith("#"):
        n_first += 1
    header = [line for line in lines[:n_first] if not line.startswith("# @")]

    comments = {}
    for key, key_node, value_node in _nodes(yaml.compose(text, Loader=LOADER)):
        comment = _beside(lines, key_node, value_node) or _above(lines, key_node, n_first)
        if comment:
            comments[key] = comment
    return _joined(header), comments


def first_line_of(file: Path) -> str:
    """Return the first line of the comment that describes a configuration file."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# @"):
            return _joined([line]) if line.startswith("#") else ""
    return ""


def _nodes(node: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted name, the key and the value of each entry in a mapping and in its nested mappings."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        yield key, key_node, value_node
        yield from _nodes(value_node, f"{key}.")


def _beside(lines: list[str], key_node: Any, value_node: Any) -> str:
    """Return the comment after a value, on the last line of the value.

    For a block of keys, return the comment after the key that the block belongs to.
    """
    # A multi-line text, written with | or >, ends on the line of the next key.
    if isinstance(value_node, yaml.ScalarNode) and value_node.style in ("|", ">"):
        return ""
    is_block = isinstance(value_node, yaml.CollectionNode) and not value_node.flow_style
    end = key_node.end_mark if is_block else value_node.end_mark
    if end.line >= len(lines):
        return ""

    rest = lines[end.line][end.column :].lstrip(": ")
    return _joined([rest]) if rest.startswith("#") else ""


def _above(lines: list[str], key_node: Any, n_first: int) -> str:
    """Return the comment directly above a key. Leave out the first n_first lines, because they describe the file."""
    end = key_node.start_mark.line
    begin = end
    while begin > n_first and lines[begin - 1].lstrip().startswith("#"):
        begin -= 1
    return _joined(lines[begin:end])


def _joined(lines: list[str]) -> str:
    """Join the text of comment lines. Leave out the # of each line."""
    return " ".join(line.strip().lstrip("#").strip() for line in lines)
