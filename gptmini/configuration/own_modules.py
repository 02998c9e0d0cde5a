"""Import the user's own modules from the current folder, but only those that a configuration names."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# The module that imports what a configuration names under _target_.
LOCATOR = "hydra._internal.utils"


class OwnModules(MetaPathFinder):
    """Finds modules in a folder for Hydra, which imports the classes of a configuration, and for modules found there.

    Nobody else finds anything there. Where the library optuna is not installed, a file optuna.py is not run in its
    place. Submodules are found by Python itself, which looks into the package that was found.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._found: set[str] = set()  # names of modules

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The module of this name in the folder; None unless it may be found, and for a submodule."""
        importer = _importer()
        is_own = importer.partition(".")[0] in self._found
        if path is not None or not (importer == LOCATOR or is_own):
            return None

        spec = PathFinder.find_spec(fullname, [self.folder])
        if spec is not None:
            self._found.add(fullname)
        return spec


def find_in(folder: str) -> None:
    """Find modules of the user's own in a folder from now on, where they are nowhere else."""
    own = [finder for finder in sys.meta_path if isinstance(finder, OwnModules)]
    if not any(finder.folder == folder for finder in own):
        sys.meta_path.append(OwnModules(folder))


def _importer() -> str:
    """The name of the module that imports another one at this moment; empty for none."""
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name != __name__ and name.partition(".")[0] != "importlib":
            return name
        frame = frame.f_back
    return ""
