"""Lightning is imported without the hundred metrics of torchmetrics, a quarter of the time from a command to its step.

Lightning takes two classes of the package, to recognise a user's metrics by them. But Python runs the package's
`__init__` first, which loads every metric, and for one of them transformers where that is installed.
"""

import logging
import sys
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType

# Names that Lightning takes, and the modules that give them. The utilities must be imported before the module of
# Metric, because the two import each other.
HOMES = {
    "Metric": "torchmetrics.utilities.checks",
    "MetricCollection": "torchmetrics.collections",
}


def import_later() -> None:
    """Put torchmetrics in place with its `__init__` not yet run: the first name outside of HOMES runs it."""
    spec = find_spec("torchmetrics")
    if spec is None or "torchmetrics" in sys.modules:
        return

    package = module_from_spec(spec)
    package.__dict__["__version__"] = version("torchmetrics")
    package.__dict__["_logger"] = logging.getLogger("torchmetrics")  # its modules ask for it
    package.__dict__["__getattr__"] = partial(_find, package)
    sys.modules["torchmetrics"] = package


def _find(package: ModuleType, name: str) -> object:
    """The value of a name that the package lacks, as yet."""
    if name in HOMES:
        try:
            return getattr(import_module(HOMES[name]), name)
        except (ImportError, AttributeError):
            pass  # a version whose modules lie otherwise, which the `__init__` imports in their order

    assert package.__spec__ is not None
    assert package.__spec__.loader is not None
    package.__dict__.pop("__getattr__", None)
    package.__spec__.loader.exec_module(package)
    return getattr(package, name)
