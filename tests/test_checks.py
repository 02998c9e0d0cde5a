"""Checks of what a user gives: the value comes back as it is, or one sentence says what was wanted."""

import math

import pytest

from gptmini.checks import UserError, file_name, number, shown, text, whole

HUGE = 10**400  # beyond the largest float


@pytest.mark.parametrize("value", [1, 7, HUGE])
def test_a_whole_number_in_range_comes_back(value):
    assert whole("n", value) is value


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None, math.nan, [1]])
def test_what_is_no_whole_number_of_at_least_one_is_refused(value):
    with pytest.raises(UserError) as caught:
        whole("n", value)
    assert str(caught.value) == f"n must be a whole number of at least 1, got {value!r}"


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ({"least": 0}, "a whole number of at least 0"),
        ({"most": 9}, "a whole number from 1 to 9"),
        ({"least": None, "most": 9}, "a whole number of at most 9"),
        ({"least": None}, "a whole number"),
        ({"null": "all"}, "a whole number of at least 1, or null for all"),
    ],
)
def test_the_range_of_a_whole_number_is_said(bounds, wanted):
    with pytest.raises(UserError) as caught:
        whole("n", 9.5, **bounds)
    assert str(caught.value) == f"n must be {wanted}, got 9.5"


def test_bounds_of_a_whole_number_belong_to_it():
    assert [whole("n", n, least=-2, most=2) for n in (-2, 2)] == [-2, 2]
    assert whole("n", -HUGE, least=None) == -HUGE
    for n in (-3, 3):
        with pytest.raises(UserError, match=f"^n must be a whole number from -2 to 2, got {n}$"):
            whole("n", n, least=-2, most=2)


@pytest.mark.parametrize("check", [whole, number])
def test_null_passes_only_where_it_stands_for_something(check):
    assert check("n", None, null="no limit") is None
    with pytest.raises(UserError, match=r"got None$"):
        check("n", None)


@pytest.mark.parametrize("value", [0, -3, 2.5, 1e308])
def test_a_finite_number_comes_back(value):
    assert number("x", value) is value


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, HUGE, -HUGE, True, "1", None, 1j])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(UserError) as caught:
        number("x", value)
    assert str(caught.value) == f"x must be a finite number, got {value!r}"


@pytest.mark.parametrize(
    ("bounds", "good", "bad", "wanted"),
    [
        ({"least": 0}, 0, -1e-9, "a finite number of at least 0"),
        ({"above": 0}, 1e-9, 0, "a finite number above 0"),
        ({"least": 0, "most": 1}, 1, 1.5, "a number from 0 to 1"),
        ({"above": 0, "most": 1}, 1, 0.0, "a number above 0 and at most 1"),
        ({"above": 0, "below": 1}, 0.5, 1, "a number above 0 and below 1"),
        ({"least": 0, "below": 1}, 0, 1, "a number of at least 0 and below 1"),
        ({"above": 0, "null": "no limit"}, 3, 0, "a finite number above 0, or null for no limit"),
    ],
)
def test_the_range_of_a_number_is_kept_and_said(bounds, good, bad, wanted):
    assert number("x", good, **bounds) is good
    for value in (bad, math.nan):
        with pytest.raises(UserError) as caught:
            number("x", value, **bounds)
        assert str(caught.value) == f"x must be {wanted}, got {value!r}"


def test_text_is_text():
    assert text("t", "") == ""
    with pytest.raises(UserError, match=r"^t must be text, got 3$"):
        text("t", 3)


@pytest.mark.parametrize("check", [lambda: whole("n", -(10**5000)), lambda: number("n", 10**5000)])
def test_a_number_that_python_will_not_write_is_refused_all_the_same(check):
    with pytest.raises(UserError, match="got a number of thousands of digits"):
        check()
    assert shown([1, "a"]) == "[1, 'a']"


def test_a_user_error_is_a_value_error():
    assert issubclass(UserError, ValueError)


def test_a_plain_file_name_comes_back():
    assert file_name("n", "Größe 1.txt") == "Größe 1.txt"


@pytest.mark.parametrize("value", ["", ".", "..", "a/b", "../a", "/a", "a\\b", "a\0", 3, None])
def test_a_name_that_leads_elsewhere_is_refused(value):
    with pytest.raises(UserError, match="n must be "):
        file_name("n", value)
