"""Who is told of a preparation while it lasts."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(kw_only=True)
class Progress:
    """How far a preparation is."""

    phase: str  # what is being done
    n_bytes: int  # bytes that are done in this phase
    # Of the text that is done in this phase, from 0 to 1; None if that is not known.
    share: float | None


def _pass_over(told: object) -> None:
    """Take no notice."""


@dataclass(kw_only=True)
class Watcher:
    """Functions that are called with what happens."""

    on_progress: Callable[[Progress], None] = _pass_over  # again and again
    on_note: Callable[[str], None] = _pass_over  # a line about what is done and why
    on_warning: Callable[[str], None] = _pass_over  # a line about a text that is odd
