"""Check the options of functions that generate text."""

import inspect
import operator
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from gptmini.generation.rules import Rules
from gptmini.settings import first_error
from gptmini.system.errors import UserError, did_you_mean


def as_list(strings: str | Iterable[str]) -> list[str]:
    """Return one or several strings as a list."""
    return [strings] if isinstance(strings, str) else list(strings)


def checked_integer(name: str, value: Any, *, least: int | None = None) -> int:
    """Return an integer of Python or NumPy as an int. Raise UserError for other types and for integers below least."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name} must be an integer, got {value!r}") from None
    if least is not None and number < least:
        raise UserError(f"{name} must be at least {least}, got {number}")
    return number


def checked_rules(function: Callable[..., Any], /, **rules: Any) -> Rules:
    """Return the Rules. Raise UserError if a name is unknown or a value is invalid.

    If a name is unknown, the error suggests a similar option of the function that the user called.
    """
    own = [field.name for field in fields(Rules)]
    for name in rules:
        if name not in own:
            known = [*inspect.signature(function).parameters, *own]
            fix = did_you_mean(name, known, otherwise=f"choose from {', '.join(known)}")
            raise UserError(f"unknown option {name}; {fix}")
    try:
        return Rules(**rules)
    except ValidationError as error:
        raise UserError(first_error(error)) from None
