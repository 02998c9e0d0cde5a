"""Figures that a run says of itself."""

import pytest

from gptmini.commands.announcements import with_prefix


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0.0 FLOP"),
        (999, "999.0 FLOP"),
        (24_576, "24.6 kFLOP"),
        (999_949, "999.9 kFLOP"),
        (999_951, "1.0 MFLOP"),
        (7_100_000, "7.1 MFLOP"),
        (8.55e8, "855.0 MFLOP"),
        (3e15, "3000.0 TFLOP"),
    ],
)
def test_a_figure_has_the_prefix_that_fits(number, expected):
    assert with_prefix(number, "FLOP") == expected
