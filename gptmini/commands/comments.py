"""Comments in configuration files, read as the explanation of their keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yaml import Node


@dataclass(frozen=True)
class Comments:
    """What the comments of one configuration file say."""

    # The lines at the file's beginning, without Hydra's line # @package; empty if there are none.
    of_file: str
    # By the key's dotted name in the file; a key without a comment is left out.
    of_keys: dict[str, str]


def comments_of(file: Path) -> Comments:
    """Read the comments of a configuration file that is known to be YAML.

    A key's comment follows its value on the line, or stands on the lines directly above the key.
    """
    import yaml

    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    n_first = 0
    while n_first < len(lines) and lines[n_first].startswith("#"):
        n_first += 1
    header = [line for line in lines[:n_first] if not line.startswith("# @")]

    of_keys = {}
    for key, key_node, value_node in _nodes(yaml.compose(text, Loader=yaml.SafeLoader)):
        comment = _beside(lines, key_node, value_node) or _above(lines, key_node, n_first)
        if comment:
            of_keys[key] = comment
    return Comments(of_file=_joined(header), of_keys=of_keys)


def _nodes(node: "Node | None", prefix: str = "") -> "Iterator[tuple[str, Node, Node]]":
    """Dotted name, key and value of each entry of a mapping and of the mappings in it."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        yield key, key_node, value_node
        yield from _nodes(value_node, f"{key}.")


def _beside(lines: list[str], key_node: "Node", value_node: "Node") -> str:
    """The comment that follows a value on its last line, or a key on its line where a block of keys is its value."""
    import yaml

    # The end of a text in several lines, behind | or >, is on the line of the next key.
    if isinstance(value_node, yaml.ScalarNode) and value_node.style in ("|", ">"):
        return ""
    is_block = isinstance(value_node, yaml.CollectionNode) and not value_node.flow_style
    end = key_node.end_mark if is_block else value_node.end_mark
    if end.line >= len(lines):
        return ""

    rest = lines[end.line][end.column :].lstrip(": ")
    return _joined([rest]) if rest.startswith("#") else ""


def _above(lines: list[str], key_node: "Node", n_first: int) -> str:
    """The comment on the lines directly above a key; empty where these lines are the first of the file.

    n_first is the number of lines of comment with which the file begins; they speak of the file.
    """
    end = key_node.start_mark.line
    begin = end
    while begin > n_first and lines[begin - 1].lstrip().startswith("#"):
        begin -= 1
    return _joined(lines[begin:end])


def _joined(lines: list[str]) -> str:
    """The text of lines of comment, without their signs."""
    return " ".join(line.strip().lstrip("#").strip() for line in lines)
