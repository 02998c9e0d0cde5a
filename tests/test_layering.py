"""Files import only from lower layers and without cycles, and libraries stay in their packages."""

import ast
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path

from gptmini.configuration.trust import known_nodes

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gptmini"

# The packages and single files of gptmini, lowest layer first. A file may import from lower layers and its own package.
LAYERS = (
    (
        "system",
        "console",
        "settings",
        "key_table",
    ),
    ("attention", "optim", "tokenizer"),
    ("data", "model"),
    ("checkpoint", "evaluation", "generation", "interop"),
    ("runs",),
    ("loading", "page", "report", "sweep"),
    ("training", "serving"),
    ("configuration",),
    ("job",),
    ("commands",),
    ("gptmini",),  # __init__.py and __main__.py
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}
# Packages without names of their own. Other packages import their modules. Only some modules of system import torch.
# Only job and commands import configuration and job, and they use nearly all of their names.
FACELESS = {"system", "console", "configuration", "job"}
HOMES = {  # the packages that may import a library, or call print
    "lightning": {"training"},
    "hydra": {"configuration", "commands"},
    "omegaconf": {"configuration"},
    "argparse": {"commands"},
    "print": {"console", "commands"},
    "matplotlib": {"report"},
    "optuna": {"sweep", "configuration"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def package_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "gptmini" if parts in (("__init__",), ("__main__",)) else parts[0]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@cache
def nodes_of(path):
    """Return every node of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def named(nodes):
    """Yield modules named in strings, such as those that are imported on first use."""
    for node in nodes:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and node.value.startswith("gptmini."):
            yield node.value.split(" ")[0]


def imported(nodes):
    """Yield the full names of imports, also of those inside functions and for type checkers.

    Relative imports have a test of their own.
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(path):
    """Return the dotted module name of a file in the package."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


@cache
def graph():
    """Return, by module name, the modules of the package that each module imports."""
    found = {}
    for name, path in MODULES.items():
        # An import names a module, or an object in a module.
        targets = {
            full if full in MODULES else full.rpartition(".")[0]
            for full in imported(nodes_of(path))
        }
        found[name] = targets & set(MODULES) - {name}
    return found


def used(path):
    """Yield the top-level names of the libraries that a file imports, and print if it calls print."""
    for name in imported(nodes_of(path)):
        yield name.partition(".")[0]
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print":
            yield "print"


def test_no_file_of_the_package_imports_relatively():
    wrong = [
        name_of(path)
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert wrong == []


def test_every_package_has_a_layer():
    assert {package_of(path) for path in FILES} == set(LAYER_OF)


def test_no_file_imports_from_another_package_of_its_layer_or_a_higher_one():
    wrong = []
    for name, path in MODULES.items():
        own = package_of(path)
        for target in (*imported(nodes_of(path)), *named(nodes_of(path))):
            top, _, rest = target.partition(".")
            other = rest.partition(".")[0]
            if top != "gptmini" or other not in LAYER_OF:
                continue
            # Files of the lowest layer are small and may import each other.
            is_below = LAYER_OF[other] < LAYER_OF[own] or LAYER_OF[other] == 0
            if other != own and not is_below:
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_no_files_import_each_other_in_a_cycle():
    left = {name: set(targets) for name, targets in graph().items()}
    while left:
        free = [name for name, targets in left.items() if not targets & set(left)]
        assert free, f"a cycle is among {sorted(left)}"
        for name in free:
            del left[name]


def test_files_import_from_other_packages_only_what_these_show():
    """A package shows names in its `__init__`. If it has no names of its own, others import its modules."""
    wrong = []
    for name, path in MODULES.items():
        for target in graph()[name]:
            _, other, *module = target.split(".")
            is_own = other == package_of(path) or not module
            if not is_own and other not in FACELESS:
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_a_package_shows_no_name_that_one_of_its_modules_has():
    """After the import of such a module, Python would return the module instead of the name (lazy_names)."""
    for path in PACKAGE.rglob("__init__.py"):
        modules = {child.stem for child in path.parent.iterdir()}
        assert not modules & {
            alias.asname
            for node in nodes_of(path)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }


def test_a_library_stays_in_its_packages():
    wrong = []
    for path in FILES:
        own = "commands" if path.name == "__main__.py" else package_of(path)
        for name in used(path):
            if own not in HOMES.get(name, {own}):
                wrong.append(f"{name} belongs to {HOMES[name]}, and {name_of(path)} uses it")
    assert wrong == []


def test_attention_requires_only_torch():
    allowed = {*sys.stdlib_module_names, "torch", "gptmini", "print"}
    for path in FILES:
        if package_of(path) == "attention":
            assert set(used(path)) <= allowed, path


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
    """Run folders store these names. They name the package, so that code may move inside it without breaking a run."""
    entries = known_nodes(ROOT / "configs")
    names = {value for keys, value in entries if keys[-1] == "_target_"}
    own = {name for name in names if name.startswith("gptmini.")}
    assert len(own) > 20
    for target in own:
        # Three parts: the target names no module inside the package.
        package, own_package, name = target.split(".")
        face = importlib.import_module(f"{package}.{own_package}")
        assert callable(getattr(face, name)), target
