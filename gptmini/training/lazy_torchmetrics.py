"""Import Lightning without the hundred metrics of torchmetrics. The metrics would take a quarter of the start-up time.

Lightning needs only two classes of torchmetrics, to recognise the metrics of a user. But Python first runs the
`__init__` of torchmetrics, which loads every metric, and also transformers if it is installed.
"""

import logging
import sys
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType

# The names that Lightning imports from torchmetrics, and the module from which to get each name. The utilities and the
# module of Metric import each other. So the utilities must be imported before the module of Metric.
HOMES = {
    "Metric": "torchmetrics.utilities.checks",
    "MetricCollection": "torchmetrics.collections",
}


def defer_torchmetrics() -> None:
    """Register torchmetrics without its `__init__`. The first access to a name that is not in HOMES runs it."""
    spec = find_spec("torchmetrics")
    if spec is None or "torchmetrics" in sys.modules:
        return

    package = module_from_spec(spec)
    package.__dict__["__version__"] = version("torchmetrics")
    # The modules of torchmetrics import _logger.
    package.__dict__["_logger"] = logging.getLogger("torchmetrics")
    package.__dict__["__getattr__"] = partial(_find, package)
    sys.modules["torchmetrics"] = package


def _find(package: ModuleType, name: str) -> object:
    if name in HOMES:
        try:
            return getattr(import_module(HOMES[name]), name)
        except (ImportError, AttributeError):
            # This version of torchmetrics has a different layout. Run its `__init__`, because the `__init__` imports
            # the modules in the right order.
            pass

    assert package.__spec__ is not None
    assert package.__spec__.loader is not None
    package.__dict__.pop("__getattr__", None)
    package.__spec__.loader.exec_module(package)
    return getattr(package, name)
