"""Checks of values that a user gives: each returns the value, or raises a UserError that says what was wanted."""

import sys


class UserError(ValueError):
    """A mistake that the user can mend.

    Its text is one sentence: the requirement, every value involved, and the remedy where that is not obvious. A command
    shows it as one line; every other exception is a bug, and keeps its traceback.
    """


def whole(name: str, value: object, *, least: int | None = 1, most: int | None = None, null: str = "") -> int | None:
    """Return value if it is a whole number from least to most (None: without bound); True and 2.0 are none.

    null says what None stands for, as in "no limit", and lets it pass; where null is empty, None is refused.
    Raises UserError: another type, or out of range.
    """
    if value is None and null:
        return None

    fits = type(value) is int and (least is None or value >= least) and (most is None or value <= most)
    if not fits:
        if least is not None and most is not None:
            bounds = [f"from {least} to {most}"]
        else:
            bounds = [f"of at least {least}"] if least is not None else []
            bounds += [f"of at most {most}"] if most is not None else []
        raise UserError(_wanted(name=name, kind="a whole number", bounds=bounds, null=null, value=value))
    return value


def number(
    name: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    null: str = "",
) -> float | None:
    """Return value if it is finite, at least least, above above, at most most and below below, where they are given.

    A whole number will do; True, text and an infinity will not. null is as for whole.
    Raises UserError: another type, or out of range.
    """
    if value is None and null:
        return None

    # A comparison with the largest float refuses what is no number or infinite, and takes a whole number of any size.
    finite = type(value) in (int, float) and abs(value) <= sys.float_info.max
    fits = (
        finite
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    )
    if not fits:
        if least is not None and most is not None:
            bounds = [f"from {least:g} to {most:g}"]
        else:
            bounds = [f"of at least {least:g}"] if least is not None else []
            bounds += [f"above {above:g}"] if above is not None else []
            bounds += [f"at most {most:g}"] if most is not None else []
            bounds += [f"below {below:g}"] if below is not None else []
        kind = "a finite number" if most is None and below is None else "a number"
        raise UserError(_wanted(name=name, kind=kind, bounds=bounds, null=null, value=value))
    return value


def text(name: str, value: object) -> str:
    """Return value if it is text, perhaps empty; UserError for another type."""
    if type(value) is not str:
        raise UserError(f"{name} must be text, got {shown(value)}")
    return value


def shown(value: object) -> str:
    """A value as an error message shows it: its repr, whatever a stranger's file holds."""
    try:
        return repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return "a number of thousands of digits"


def _wanted(*, name: str, kind: str, bounds: list[str], null: str, value: object) -> str:
    """The sentence that refuses a number."""
    range_of_values = f" {' and '.join(bounds)}" if bounds else ""
    alternative = f", or null for {null}" if null else ""
    return f"{name} must be {kind}{range_of_values}{alternative}, got {shown(value)}"


def file_name(name: str, value: object) -> str:
    """Return value if it is a plain name of a file or folder, which leads nowhere else; UserError otherwise."""
    if text(name, value) in ("", ".", "..") or set(value) & set("/\\\0"):
        raise UserError(f"{name} must be a plain file name, got {shown(value)}")
    return value
