"""Import the user's own modules from the working directory, but only modules that a configuration names."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# The module that imports the classes under _target_.
LOCATOR = "hydra._internal.utils"


class UserModules(MetaPathFinder):
    """Finds modules in a folder if Hydra imports a _target_, or if a module from that folder imports them.

    A file optuna.py never replaces the library optuna, even if the library is not installed.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._found: set[str] = set()  # names of the modules that were found in the folder

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Find the module in the folder. Python itself finds submodules."""
        importer = _importer()
        is_own = importer.partition(".")[0] in self._found
        if path is not None or not (importer == LOCATOR or is_own):
            return None

        spec = PathFinder.find_spec(fullname, [self.folder])
        if spec is not None:
            self._found.add(fullname)
        return spec


def allow_user_modules(folder: str) -> None:
    """From now on, let imports find the user's own modules in a folder. Modules in other places take precedence."""
    folders = [finder.folder for finder in sys.meta_path if isinstance(finder, UserModules)]
    if folder not in folders:
        sys.meta_path.append(UserModules(folder))


def _importer() -> str:
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name != __name__ and name.partition(".")[0] != "importlib":
            return name
        frame = frame.f_back
    return ""
