"""Show the progress while gptmini prepares a text."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from gptmini.console.printable import printable, wrapped

if TYPE_CHECKING:
    from rich.console import Console


# Without a terminal, at least INTERVAL seconds pass between two progress lines. The line of a new phase may follow
# after INTERVAL_OF_PHASES seconds.
INTERVAL = 10
INTERVAL_OF_PHASES = 1
# The speed of a phase is shown after this many seconds. Before that, too little data was processed to measure it.
SETTLED = 1


@dataclass(kw_only=True)
class Progress:
    """The progress of a preparation."""

    phase: str  # the current work, such as "tokenising"
    n_bytes: int  # bytes done in this phase
    # Fraction of the text that is done in this phase, from 0 to 1; None if the fraction is unknown.
    share: float | None


@dataclass(kw_only=True)
class Watcher:
    """Callbacks for the progress of a preparation."""

    on_progress: Callable[[Progress], None] = lambda progress: None  # called many times
    on_note: Callable[[str], None] = lambda note: None  # one line for the user


@contextmanager
def show_progress(console: "Console", topic: str = "") -> Iterator[Watcher]:
    """Return a watcher that shows on a console how far the preparation of a text is, and notes after the topic."""
    prefix = f"{topic:8} " if topic else ""
    with ProgressLine(console) as line:
        yield Watcher(
            on_progress=line.show,
            on_note=lambda note: console.print(
                wrapped(f"{prefix}{printable(note)}", console), markup=False
            ),
        )


class ProgressLine:
    """Shows progress during a with block: one changing line on a terminal, elsewhere a new line every few seconds."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._status = console.status("reading text")
        self.phase = ""  # the phase that was shown last
        self._phase_began = 0.0
        self._printed_at = time.monotonic()

    def __enter__(self) -> "ProgressLine":
        """Show that work has started."""
        self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the line from a terminal."""
        self._status.stop()

    def show(self, progress: Progress) -> None:
        """Show the progress."""
        now = time.monotonic()
        is_new = progress.phase != self.phase
        if is_new:
            self.phase = progress.phase
            self._phase_began = now
        line = progress_line(progress, seconds=now - self._phase_began)

        silent = now - self._printed_at
        if self._console.is_terminal:
            self._status.update(line)
        elif silent >= INTERVAL or (is_new and silent >= INTERVAL_OF_PHASES):
            self._printed_at = now
            self._console.print(line, markup=False)


def progress_line(progress: Progress, *, seconds: float) -> str:
    """Return a line about a phase that started `seconds` ago: bytes, fraction done, speed and the time left."""
    if not progress.n_bytes:
        return progress.phase
    parts = [f"{progress.n_bytes / 1e6:,.0f} MB"]
    if progress.share is not None:
        parts.append(f"{progress.share:.0%}")
    if seconds >= SETTLED:
        parts.append(f"{progress.n_bytes / 1e6 / seconds:,.1f} MB/s")
        if progress.share:
            left = seconds * (1 - progress.share) / progress.share
            parts.append(f"{left:,.0f} s left" if left < 600 else f"{left / 60:,.0f} min left")
    return f"{progress.phase}: {', '.join(parts)}"
