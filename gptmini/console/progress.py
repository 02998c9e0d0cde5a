"""What the preparation of a text reports while it runs."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(kw_only=True)
class Progress:
    """The progress of a preparation."""

    phase: str  # the current work, such as "tokenising"
    n_bytes: int = 0  # bytes done in this phase
    # Fraction of the text that is done in this phase, from 0 to 1; None if the fraction is unknown.
    share: float | None = None


@dataclass(kw_only=True)
class Watcher:
    """Callbacks for the progress of a preparation."""

    on_progress: Callable[[Progress], None] = lambda progress: None  # called many times
    on_note: Callable[[str], None] = lambda note: None  # one line for the user
