"""Columns of tables, and numbers for people."""

import pytest

from gptmini.console.numbers import rounded, with_prefix
from gptmini.console.table import aligned, cut


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (999, "999.0 FLOP"),
        (999_949, "999.9 kFLOP"),
        (999_951, "1.0 MFLOP"),
        (3e15, "3000.0 TFLOP"),
    ],
)
def test_a_figure_has_the_prefix_that_fits(number, expected):
    assert with_prefix(number, "FLOP") == expected


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        (12345.678, "12,345.68"),
        (0.0312, "0.031"),
    ],
)
def test_a_small_number_of_passes_is_not_rounded_to_zero(passes, expected):
    assert rounded(passes) == expected


def test_columns_are_aligned_by_the_columns_of_a_terminal():
    """A character of Chinese takes two columns."""
    rows = [("run", "loss"), ("\u4e2d\u6587", "1.5")]
    assert aligned(rows) == ["run   loss", "\u4e2d\u6587  1.5"]
    assert aligned(rows, right=True) == [" run  loss", "\u4e2d\u6587   1.5"]
    assert aligned([]) == []
    assert [cut("\u4e2d\u6587", width) for width in (4, 3, 1, 0)] == [
        "\u4e2d\u6587",
        "\u4e2d…",
        "…",
        "",
    ]
