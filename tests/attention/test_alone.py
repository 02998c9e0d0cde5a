"""The attention package and its tests can be copied elsewhere: they import only torch, pytest and UserError."""

import ast
import sys
from pathlib import Path

import pytest

import gptmini.attention

ROOM = Path(gptmini.attention.__file__).parent
TESTS = Path(__file__).parent
OWN = {"gptmini.attention", "gptmini.user_error"}
OF_TESTS = OWN | {"attention", "pytest", "sizes"}


def imported(path):
    """Return every name that a file imports, anywhere in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize(("folder", "allowed"), [(ROOM, OWN), (TESTS, OF_TESTS)])
def test_nothing_else_is_imported(folder, allowed):
    files = sorted(folder.rglob("*.py"))
    assert len(files) > 5

    for path in files:
        for name in imported(path):
            root = name.partition(".")[0]
            is_torch_or_python = root == "torch" or root in sys.stdlib_module_names
            in_a_room = ".".join(name.split(".")[:2])
            assert is_torch_or_python or root in allowed or in_a_room in allowed, (path, name)
