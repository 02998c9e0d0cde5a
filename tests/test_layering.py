"""The rooms of the package import each other only along the arrows of the design."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gptmini"
ALLOWED = {
    "attention": set(),
    "hardware": set(),
    "optim": set(),
    "tokenizer": set(),
    "data": set(),
    "model": {"attention"},
    "generation": {"model", "attention"},
    "evaluation": {"model", "attention"},
    "interop": {"model", "attention", "tokenizer", "data"},
    "run_folder": {"model", "attention", "tokenizer", "data"},
    "report": {"run_folder", "evaluation", "model", "data", "tokenizer"},
    "training": {
        "report",
        "run_folder",
        "generation",
        "evaluation",
        "model",
        "optim",
        "data",
        "tokenizer",
        "hardware",
    },
    "files": set(),
    "checks": set(),
    "commands": {
        "training",
        "report",
        "run_folder",
        "generation",
        "evaluation",
        "interop",
        "model",
        "optim",
        "data",
        "tokenizer",
        "hardware",
    },
    "gptmini": {"attention", "optim", "tokenizer", "data", "model", "generation", "evaluation"},  # the lazy face
}


def room(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "gptmini" if parts == ("__init__",) else parts[0]


def imported(path):
    """Full names of the modules that a file imports anywhere, and of the modules it names in strings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("gptmini."):
            yield node.value.split(" ")[0]


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_room_is_known():
    assert {room(path) for path in FILES} == set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_follow_the_arrows(path):
    own = room(path)
    for name in imported(path):
        top, _, rest = name.partition(".")
        assert top != "lightning" or own == "training", f"{path} imports {name}"
        if top == "gptmini" and rest:
            target = rest.split(".")[0]
            assert target == own or target in ALLOWED[own] | {"files", "checks"}, f"{own} must not import {target}"


def test_the_arrows_form_no_cycle():
    below = dict(ALLOWED)
    while below:
        free = [name for name, targets in below.items() if not targets & set(below)]
        assert free, f"cycle among {sorted(below)}"
        for name in free:
            del below[name]


def test_importing_the_package_loads_nothing_heavy():
    probe = (
        "import sys, gptmini; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & "
        "{'torch', 'numpy', 'lightning', 'hydra', 'tensorboard', 'tiktoken'}))"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
