"""Checks of values that a user gives: each returns the value, or raises a UserError that says what was wanted."""

import re
import sys
from typing import Any, overload

from gptmini.user_error import UserError as UserError

# The escapes of a Python string that a typed text may hold: \n \r \t \\ \xHH \uHHHH and, up to U+10FFFF, \UHHHHHHHH.
ESCAPES = re.compile(
    r"\\(?:[nrt\\]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5}|U0010[0-9a-fA-F]{4})"
)


@overload
def whole(name: str, value: Any, *, least: int | None = 1, most: int | None = None) -> int: ...
@overload
def whole(
    name: str, value: Any, *, least: int | None = 1, most: int | None = None, null: str
) -> int | None: ...
def whole(
    name: str,
    value: Any,
    *,
    least: int | None = 1,
    most: int | None = None,
    null: str = "",
) -> int | None:
    """Return value if it is a whole number from least to most; True and 2.0 do not count as whole numbers.

    Args:
        name: what the error message calls the value.
        value: the value to check, of any type.
        least: smallest number that is allowed; None for no lower bound.
        most: largest number that is allowed; None for no upper bound.
        null: what None stands for, as in "no limit". None is refused where null is empty, and returned otherwise.

    Raises UserError: another type, or out of range.
    """
    if value is None and null:
        return None
    if type(value) is int and _is_within(value, least=least, most=most):
        return value

    bounds = []
    if least is not None and most is not None:
        bounds.append(f"from {least} to {most}")
    elif least is not None:
        bounds.append(f"of at least {least}")
    elif most is not None:
        bounds.append(f"of at most {most}")
    raise _refusal(name=name, kind="a whole number", bounds=bounds, null=null, value=value)


@overload
def number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> float: ...
@overload
def number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    null: str,
) -> float | None: ...
def number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    null: str = "",
) -> float | None:
    """Return value if it is a finite number within its bounds, whole or not; True, text and infinities are refused.

    Args:
        name: what the error message calls the value.
        value: the value to check, of any type.
        least: smallest number that is allowed; None for no such bound.
        above: number that the value must be greater than; None for no such bound.
        most: largest number that is allowed; None for no such bound.
        below: number that the value must be less than; None for no such bound.
        null: what None stands for, as in "no limit". None is refused where null is empty, and returned otherwise.

    Raises UserError: another type, or out of range.
    """
    if value is None and null:
        return None

    # The comparison with the largest float refuses NaN and infinities; it works for whole numbers of any size.
    is_finite = type(value) in (int, float) and abs(value) <= sys.float_info.max
    if is_finite and _is_within(value, least=least, above=above, most=most, below=below):
        return value

    bounds = []
    if least is not None and most is not None:
        bounds.append(f"from {least:g} to {most:g}")
    else:
        if least is not None:
            bounds.append(f"of at least {least:g}")
        if above is not None:
            bounds.append(f"above {above:g}")
        if most is not None:
            bounds.append(f"at most {most:g}")
        if below is not None:
            bounds.append(f"below {below:g}")
    # An upper bound says already that an infinity is refused.
    kind = "a finite number" if most is None and below is None else "a number"
    raise _refusal(name=name, kind=kind, bounds=bounds, null=null, value=value)


def text(name: str, value: Any) -> str:
    """Return value if it is text, which may be empty; UserError for another type."""
    if type(value) is not str:
        raise UserError(f"{name} must be text, got {shown(value)}")
    return value


def file_name(name: str, value: Any) -> str:
    """Return value if it is the plain name of a file or folder, without a path; UserError otherwise."""
    if text(name, value) in ("", ".", "..") or set(value) & set("/\\\0"):
        raise UserError(f"{name} must be a plain file name, got {shown(value)}")
    return value


def shown(value: object) -> str:
    """Return the text that stands for a value in an error message: its repr, or a phrase where repr fails."""
    try:
        return repr(value)
    except ValueError:  # Python refuses to write a whole number of more than 4300 digits
        return "a number of thousands of digits"


def _is_within(
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> bool:
    """Whether value keeps every bound that is not None."""
    if least is not None and value < least:
        return False
    if above is not None and value <= above:
        return False
    if most is not None and value > most:
        return False
    return below is None or value < below


def _refusal(*, name: str, kind: str, bounds: list[str], null: str, value: object) -> UserError:
    """Build the error that says what kind of number is wanted, within which bounds."""
    requirement = kind
    if bounds:
        requirement += f" {' and '.join(bounds)}"
    if null:
        requirement += f", or null for {null}"
    return UserError(f"{name} must be {requirement}, got {shown(value)}")


def unescaped(text: str) -> str:
    r"""A typed text with its escapes replaced by the characters that they stand for, as \n by a line break."""
    return ESCAPES.sub(lambda found: found[0].encode().decode("unicode_escape"), text)
