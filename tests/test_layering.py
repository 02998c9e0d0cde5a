"""The rooms of the package import each other only along the arrows of the design, and no file imports a script.

Files in scripts/benchmarks import each other, relatively.
"""

import ast
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path

from gptmini.untrusted import known_nodes, targets

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


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@cache
def nodes_of(path):
    """Every node of a file's syntax."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported(path):
    """Full names of the modules that a file imports anywhere, and of the modules it names in strings.

    Benchmarks import each other relatively; these imports are left out.
    """
    for node in nodes_of(path):
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
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print":
            yield "print"


def test_every_room_is_known():
    assert {room(path) for path in FILES} == set(BELOW)


def test_the_arrows_form_no_cycle():
    below = dict(BELOW)
    while below:
        free = [name for name, targets in below.items() if not targets & set(below)]
        assert free, f"cycle among {sorted(below)}"
        for name in free:
            del below[name]


def test_imports_follow_the_arrows():
    wrong = []
    for path in FILES:
        allowed = BELOW[room(path)] | EVERYWHERE | {room(path)}
        for name in imported(path):
            top, _, rest = name.partition(".")
            target = rest.split(".")[0]
            # What is no room is a name of the face.
            if top == "gptmini" and target in BELOW and target not in allowed:
                wrong.append(f"{name_of(path)} imports {name}")
    assert wrong == []


def test_a_library_has_one_home():
    wrong = []
    for path in FILES:
        is_program = path.name in ("__main__.py", "hardware.py")  # python -m gptmini.hardware
        own = "commands" if is_program else room(path)
        for name in used(path):
            if HOMES.get(name, own) != own:
                wrong.append(f"{name} belongs to {HOMES[name]}, and {name_of(path)} uses it")
    assert wrong == []


def test_nothing_imports_a_script():
    """imported() leaves out the relative imports of benchmarks, which are allowed."""
    scripts = {script.stem for script in SCRIPT_FILES} | {"benchmarks", "scripts"}
    scripts -= sys.stdlib_module_names
    wrong = []
    for path in (*FILES, *SCRIPT_FILES):
        names = {name.partition(".")[0] for name in imported(path)}
        wrong += [f"{name_of(path)} imports {name}" for name in names & scripts]
    assert wrong == []


def test_no_two_files_and_no_two_classes_have_one_name():
    files = [path.name for path in FILES if not path.name.startswith("__")]
    assert [name for name in set(files) if files.count(name) > 1] == []
    classes = [
        node.name for path in FILES for node in nodes_of(path) if isinstance(node, ast.ClassDef)
    ]
    assert [name for name in set(classes) if classes.count(name) > 1] == []


def test_importing_the_package_loads_nothing_heavy():
    probe = (
        "import sys, gptmini; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & "
        "{'torch', 'numpy', 'lightning', 'hydra', 'tensorboard', 'tiktoken'}))"
    )
    command = [sys.executable, "-c", probe]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_configurations_name_what_a_room_shows():
    """Run folders keep these names, so that code may move behind a room's face without breaking a run."""
    names = {target for _, target in targets(known_nodes(ROOT / "configs"))}
    own = {name for name in names if name.startswith("gptmini.")}
    assert len(own) > 20
    for target in own:
        package, own_room, name = target.split(".")  # three parts: no module inside a room is named
        face = importlib.import_module(f"{package}.{own_room}")
        assert callable(getattr(face, name)), target
