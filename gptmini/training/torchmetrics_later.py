"""Lightning is imported without the metrics of torchmetrics, of which it needs two classes.

`import torchmetrics` loads a hundred metrics, and transformers for one of them where it is installed: a quarter of the
processor time from a command to its first step. Lightning asks for the classes Metric and MetricCollection alone, to
recognise a user's metrics by them.
"""

import logging
import sys
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType

PACKAGE = "torchmetrics"
# Names that Lightning takes from the package, and the modules that give them. Its utilities must be imported before its
# metric, because the two import each other.
HOMES = {
    "__version__": "torchmetrics.__about__",
    "Metric": "torchmetrics.utilities.checks",
    "MetricCollection": "torchmetrics.collections",
}


def import_later() -> None:
    """Put torchmetrics in place with its `__init__` not yet run: the first name asked for outside of HOMES runs it.

    Nothing is done where torchmetrics is imported already, or is of another major version than the one that was tried.
    """
    if PACKAGE in sys.modules or not version(PACKAGE).startswith("1."):
        return

    spec = find_spec(PACKAGE)
    assert spec is not None
    package = module_from_spec(spec)
    sys.modules[PACKAGE] = package
    package.__dict__["_logger"] = logging.getLogger(PACKAGE)  # its modules ask for it
    package.__dict__["__getattr__"] = partial(_find, package)


def _find(package: ModuleType, name: str) -> object:
    """The value of a name that the package lacks."""
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)

    spec = package.__spec__
    assert spec is not None
    assert spec.loader is not None
    del package.__dict__["__getattr__"]
    spec.loader.exec_module(package)
    return getattr(package, name)
