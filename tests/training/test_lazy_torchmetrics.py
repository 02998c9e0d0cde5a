import subprocess
import sys

import pytest

PROGRAM = """
import sys
{before}
import gptmini.training.trainer
assert {has_all} == ("torchmetrics.classification" in sys.modules)

from lightning.pytorch.core import module
import torchmetrics
assert module.Metric is torchmetrics.Metric is torchmetrics.metric.Metric

accuracy = torchmetrics.Accuracy("binary")
assert isinstance(accuracy, module.Metric)
from torchmetrics.functional import accuracy
print(*sorted(torchmetrics.__all__ + [torchmetrics.__version__]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("before", "has_all"), [("", False), ("import torchmetrics", True)])
def test_lightning_loads_no_metric_and_whoever_asks_for_one_has_all(before, has_all):
    program = PROGRAM.format(before=before, has_all=has_all)
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    import torchmetrics

    expected = sorted([*torchmetrics.__all__, torchmetrics.__version__])
    assert found.stdout.split() == expected
