"""Check the options of functions that generate text."""

import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from gptmini.generation.decoding import Request
from gptmini.generation.rules import Rules
from gptmini.settings import first_error
from gptmini.system.errors import UserError, did_you_mean


def checked_request(
    function: Callable[..., Any],
    /,
    *,
    seed: int,
    stop: str | Sequence[str] | None,
    ignore_end_of_text: bool,
    **rules: Any,
) -> Request:
    """Return a request without a prompt. Raises UserError if a name is unknown or a value is invalid.

    If a name is unknown, the error suggests a similar option of the function that the user called.
    """
    seed = checked_integer("seed", seed)
    names = [field.name for field in fields(Rules)]
    for name in rules:
        if name not in names:
            options = [*inspect.signature(function).parameters, *names]
            fix = did_you_mean(name, options, otherwise=f"choose from {', '.join(options)}")
            raise UserError(f"unknown option {name}; {fix}")
    try:
        checked_rules = Rules(**rules)
    except ValidationError as error:
        raise UserError(first_error(error)) from None
    return Request(
        rules=checked_rules,
        seed=seed,
        stop=[stop] if isinstance(stop, str) and stop else list(stop or ()),
        ignore_end_of_text=ignore_end_of_text,
    )


def checked_integer(name: str, value: Any, *, least: int | None = None) -> int:
    """Return an integer of Python or NumPy as an int. Raise UserError for other types and for integers below least."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name} must be an integer, got {value!r}") from None
    if least is not None and number < least:
        raise UserError(f"{name} must be at least {least}, got {number}")
    return number
