"""Checks of values that a user gives: each returns the value, or raises a UserError that says what was wanted."""

import math


class UserError(ValueError):
    """A mistake that the user can mend.

    Its text is one sentence: the requirement, every value involved, and the remedy where that is not obvious. A command
    shows it as one line; every other exception is a bug, and keeps its traceback.
    """


def whole(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """Return value if it is a whole number from least to most (None: without bound); True and 2.0 are none.

    Raises UserError: another type, or out of range.
    """
    fits = type(value) is int and value >= least and (most is None or value <= most)
    if not fits:
        wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UserError(f"{name} must be a whole number {wanted}, got {value!r}")
    return value


def number(
    name: str, value: object, *, least: float | None = None, above: float | None = None, most: float | None = None
) -> float:
    """Return value if it is a finite number: at least least, above above and at most most, where they are given.

    A whole number will do; True, text and an infinity will not.
    Raises UserError: another type, or out of range.
    """
    finite = type(value) in (int, float) and math.isfinite(value)
    fits = (
        finite
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
    )
    if not fits:
        bounds = [f"of at least {least:g}"] if least is not None else []
        bounds += [f"above {above:g}"] if above is not None else []
        bounds += [f"at most {most:g}"] if most is not None else []
        wanted = " and ".join(bounds) if bounds else "that is finite"
        raise UserError(f"{name} must be a number {wanted}, got {value!r}")
    return value


def text(name: str, value: object) -> str:
    """Return value if it is text, perhaps empty; UserError for another type."""
    if type(value) is not str:
        raise UserError(f"{name} must be text, got {value!r}")
    return value
