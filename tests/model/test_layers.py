"""Single layers equal their formulas."""

import math

import pytest
import torch

from gptmini.model.layers import ACTIVATION
from gptmini.model.smear import Smear


def test_a_smear_adds_multiples_of_the_positions_before():
    smear = Smear(2, 3)
    x = torch.arange(24.0).view(2, 4, 3)
    assert torch.equal(smear(x), x)  # gains start at 0

    gains = [torch.tensor([0.5, 2.0, -1.0]), torch.tensor([10.0, 0.0, 1.0])]
    for parameter, gain in zip(smear.gains, gains, strict=True):
        parameter.data = gain

    for t in range(4):
        expected = x[:, t] + sum(gains[i] * x[:, t - 1 - i] for i in range(2) if t > i)
        torch.testing.assert_close(smear(x)[:, t], expected)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("gelu_exact", lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
        ("gelu", lambda x: x * 0.5 * (1 + math.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))),
        ("relu2", lambda x: max(x, 0.0) ** 2),
        ("square", lambda x: x**2),
    ],
)
def test_an_activation_is_its_formula(name, formula):
    inputs = [-3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0]
    outputs = ACTIVATION[name](torch.tensor(inputs, dtype=torch.float64)).tolist()
    assert outputs == pytest.approx([formula(x) for x in inputs], abs=1e-12)
