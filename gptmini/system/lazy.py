"""Import the names of a package at their first use, because some of its files import torch."""

import ast
import pkgutil
from collections.abc import Callable
from importlib import import_module


def lazy_names(package: str) -> Callable[[str], object]:
    """Return the function `__getattr__` of a package, which imports a name from the module that defines it.

    The `__init__` of the package lists its names as `from MODULE import NAME as NAME` below `if TYPE_CHECKING:`. Type
    checkers read this list. Python skips it, so this function reads it from the source.
    """
    tree = ast.parse(pkgutil.get_data(package, "__init__.py") or "")
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    module_of = {alias.asname: node.module for node in imports for alias in node.names}

    def import_name(name: str) -> object:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module), name)

    return import_name
