"""docs/private_apis.md lists every private name of a library that gptmini uses, and each of them exists."""

import ast
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TABLE = [
    line.split("|")[1]
    for line in (ROOT / "docs" / "private_apis.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ")
]
LISTED = {name for cell in TABLE for name in re.findall(r"`([\w.]+)`", cell)}
# Documented names of Python that start with an underscore.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_getframe", "_replace"}


def private_parts(dotted):
    """Return the parts of a dotted name that start with one underscore."""
    return {part for part in dotted.split(".") if re.match(r"_[^_]", part)}


def used_in(tree):
    """Yield the private names in a file that the file does not define itself: attributes, and names in strings."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if ast.unparse(node.value) in ("self", "cls")}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in attributes:
        yield from private_parts(node.attr) - own
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            yield from private_parts(str(getattr(node.args[1], "value", "")))
        elif isinstance(node, ast.Constant) and re.fullmatch(r"[a-z]+(\.\w+)+", str(node.value)):
            yield from private_parts(node.value)


def test_each_private_name_is_listed():
    used = set()
    for path in (ROOT / "gptmini").rglob("*.py"):
        used |= set(used_in(ast.parse(path.read_text(encoding="utf-8"))))
    listed = {part for name in LISTED for part in private_parts(name)}
    used -= DOCUMENTED | {"_target_", "_get_full_key"}
    assert used == listed - {"_TrainingEpochLoop", "_logger"}  # used by another name


@pytest.mark.slow
def test_each_listed_name_exists():
    for name in sorted(LISTED):
        if "." in name and not name.startswith("loop."):
            pkgutil.resolve_name(name)  # raises an error if it does not exist
