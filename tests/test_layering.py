"""The rooms of the package import each other only along the arrows of the design, and no file imports a script.

Files in scripts/benchmarks import each other, relatively.
"""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gptmini.untrusted import nodes, targets

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gptmini"
SCRIPTS = ROOT / "scripts"
BENCHMARKS = SCRIPTS / "benchmarks"

CORE = {"model", "attention", "tokenizer", "data"}
# Files that every room may import.
EVERYWHERE = {"files", "settings", "untrusted", "user_error"}
BELOW = {  # the rooms that a room may import, those apart
    "settings": set(),
    "untrusted": set(),
    "user_error": set(),
    "files": set(),
    "hub_errors": set(),
    "world": set(),
    "attention": set(),
    "optim": set(),
    "hardware": set(),
    "tokenizer": set(),
    "data": {"hub_errors", "tokenizer"},
    "model": {"attention"},
    "generation": CORE,
    "evaluation": CORE,
    "interop": CORE | {"hub_errors"},
    "checkpoint": {"model"},
    "runs": {"checkpoint", "model"},
    "sweep": {"runs", "checkpoint", "model"},
    "loading": CORE | {"checkpoint", "runs", "interop"},
    "report": {"checkpoint", "runs", "evaluation", "model", "data", "tokenizer"},
    "training": {
        "report",
        "checkpoint",
        "runs",
        "sweep",
        "generation",
        "evaluation",
        "model",
        "optim",
        "data",
        "tokenizer",
        "hardware",
        "world",
    },
}
BELOW["commands"] = set(BELOW) - EVERYWHERE
BELOW["gptmini"] = set(BELOW) - EVERYWHERE  # the lazy face
HOMES = {  # the only room that may import a library, or print
    "lightning": "training",
    "hydra": "commands",
    "omegaconf": "commands",
    "argparse": "commands",
    "print": "commands",
    "matplotlib": "report",
    "optuna": "sweep",
}
FILES = sorted(PACKAGE.rglob("*.py"))
SCRIPT_FILES = sorted(SCRIPTS.rglob("*.py"))


def room(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "gptmini" if parts in (("__init__",), ("__main__",)) else parts[0]


def imported(path):
    """Full names of the modules that a file imports anywhere, and of the modules it names in strings.

    Benchmarks import each other relatively; these imports are left out.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            assert path.is_relative_to(BENCHMARKS), f"{name_of(path)} imports relatively"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("gptmini.")
        ):
            yield node.value.split(" ")[0]


def used(path):
    """Top names of the libraries that a file imports, and print if it calls that."""
    for name in imported(path):
        yield name.partition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ):
            yield "print"


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def test_every_room_is_known():
    assert {room(path) for path in FILES} == set(BELOW)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_follow_the_arrows(path):
    own = room(path)
    for name in imported(path):
        top, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if top == "gptmini" and target in BELOW:  # anything else is a name of the face
            assert target == own or target in BELOW[own] | EVERYWHERE, (
                f"{own} must not import {target}"
            )


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_library_has_one_home(path):
    is_program = path.name in ("__main__.py", "hardware.py")  # python -m gptmini.hardware
    own = "commands" if is_program else room(path)
    for name in used(path):
        assert HOMES.get(name, own) == own, (
            f"{name} belongs to {HOMES[name]}, and {name_of(path)} uses it"
        )


def test_the_arrows_form_no_cycle():
    below = dict(BELOW)
    while below:
        free = [name for name, targets in below.items() if not targets & set(below)]
        assert free, f"cycle among {sorted(below)}"
        for name in free:
            del below[name]


@pytest.mark.parametrize("path", [*FILES, *SCRIPT_FILES], ids=name_of)
def test_nothing_imports_a_script(path):
    """imported() leaves out the relative imports of benchmarks, which are allowed."""
    scripts = {script.stem for script in SCRIPT_FILES} | {"benchmarks", "scripts"}
    imports_ours = {name.partition(".")[0] for name in imported(path)} & scripts
    assert imports_ours - sys.stdlib_module_names == set()


def test_importing_the_package_loads_nothing_heavy():
    probe = (
        "import sys, gptmini; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & "
        "{'torch', 'numpy', 'lightning', 'hydra', 'tensorboard', 'tiktoken'}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_a_configuration_names_what_a_room_shows(path):
    """Run folders keep these names, so that code may move behind a room's face without breaking a run."""
    for _, target in targets(nodes(yaml.safe_load(path.read_text(encoding="utf-8")))):
        if not target.startswith("gptmini."):
            continue
        package, own_room, name = target.split(".")  # three parts: no module inside a room is named
        face = importlib.import_module(f"{package}.{own_room}")
        assert callable(getattr(face, name)), target
