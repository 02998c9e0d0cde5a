"""Import Lightning without the hundred metrics of torchmetrics. They would take a quarter of the start-up time.

Lightning needs only two classes of torchmetrics, to recognise a user's metrics. But Python first runs the package's
`__init__`. It loads every metric, and imports transformers for one of them if it is installed.
"""

import logging
import sys
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType

# Names that Lightning imports, and their modules. The utilities must be imported before the module of Metric, because
# the two modules import each other.
HOMES = {
    "Metric": "torchmetrics.utilities.checks",
    "MetricCollection": "torchmetrics.collections",
}


def defer_torchmetrics() -> None:
    """Register torchmetrics without running its `__init__`. The first access to a name that is not in HOMES runs it."""
    spec = find_spec("torchmetrics")
    if spec is None or "torchmetrics" in sys.modules:
        return

    package = module_from_spec(spec)
    package.__dict__["__version__"] = version("torchmetrics")
    package.__dict__["_logger"] = logging.getLogger("torchmetrics")  # its modules import it
    package.__dict__["__getattr__"] = partial(_find, package)
    sys.modules["torchmetrics"] = package


def _find(package: ModuleType, name: str) -> object:
    """Return the value of a name that the package has not loaded yet."""
    if name in HOMES:
        try:
            return getattr(import_module(HOMES[name]), name)
        except (ImportError, AttributeError):
            pass  # this version has a different layout: run its `__init__`, which imports in the right order

    assert package.__spec__ is not None
    assert package.__spec__.loader is not None
    package.__dict__.pop("__getattr__", None)
    package.__spec__.loader.exec_module(package)
    return getattr(package, name)
