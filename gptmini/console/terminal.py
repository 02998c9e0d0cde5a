"""Print lines on a terminal and in the log of a run, and show progress."""

import errno
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TextIO

from rich.console import Console
from rich.status import Status
from rich.text import Text

from gptmini.console.numbers import duration
from gptmini.console.printable import printable
from gptmini.console.printing import print_lines, topic_lines
from gptmini.console.progress import Progress, Watcher

# Without a terminal, at least INTERVAL seconds pass between two progress lines. The line of a new phase may follow
# after INTERVAL_OF_PHASES seconds.
INTERVAL = 10
INTERVAL_OF_PHASES = 1
# The speed of a phase is shown after this many seconds. Before that, too little data was processed to measure it.
SETTLED = 1


class BrokenPipeConsole(Console):
    """A console that stops printing when nobody reads its output, such as after `| head` or in a closed terminal."""

    def on_broken_pipe(self) -> None:
        """Stop printing from now on. Rich's own on_broken_pipe would exit the program."""
        self.quiet = True

    def _check_buffer(self) -> None:
        """Write the buffer, and treat a closed terminal like a closed pipe."""
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.on_broken_pipe()


def make_console(kind: str = "auto") -> Console:
    """Return a console for stdout. The argument kind is 'auto', 'lines' or 'quiet'."""
    # Notebooks and CI servers set FORCE_COLOR. With it, Rich would draw a progress bar, although the cursor cannot move
    # there.
    has_terminal = sys.stdout is not None and sys.stdout.isatty()
    return BrokenPipeConsole(
        quiet=kind == "quiet",
        force_terminal=None if has_terminal and kind != "lines" else False,
        force_jupyter=False,  # in a notebook, Rich would print even if kind is quiet
        soft_wrap=True,
        highlight=False,
    )


def wrapped(line: str, console: Console) -> str:
    """Break a line between words for a terminal, aligned with the text after a topic. Pipes get it unchanged."""
    if not console.is_terminal:
        return line
    parts = textwrap.wrap(
        line,
        console.width,
        subsequent_indent=" " * 9,  # the width of a topic, and a space
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(parts)


class Screen:
    """Prints the lines of a run on a console, and writes them without colors to a log.

    If one of the two raises an OSError, for example because the disk is full, ignore the error. The other still gets
    the line. MetricsLogger writes to the folder of the log and reports the error.
    """

    def __init__(self, console: Console, log: TextIO | None = None) -> None:
        self.console = console
        self.log = log

    def print_line(self, line: str | Text, *, on_console: bool = True) -> None:
        """Write a line to the log and, if on_console is true, to the console.

        On a terminal, a string breaks between words, and a Text stays one line.
        """
        if isinstance(line, Text):
            plain = line.plain
        else:
            plain = printable(line)
            line = Text(wrapped(plain, self.console))

        if self.log is not None:
            with suppress(OSError):
                print_lines(plain, file=self.log)
        if on_console:
            with suppress(OSError):
                self.console.print(line)

    def print_topic(self, topic: str, *texts: str) -> None:
        """Print the topic and the first text in one line, and each other text in a line below."""
        for line in topic_lines(topic, *texts):
            # A command stays one line, so that the user can copy it.
            is_command = topic in ("next", "better")
            self.print_line(Text(printable(line)) if is_command else line)


@contextmanager
def show_progress(console: Console, topic: str = "") -> Iterator[Watcher]:
    """Return a watcher that shows on a console how far the preparation of a text is, and notes after the topic."""
    screen = Screen(console)
    with console.status("reading text") as status:
        yield Watcher(
            on_progress=ProgressLine(status).show,
            on_note=partial(screen.print_topic, topic) if topic else screen.print_line,
        )


class ProgressLine:
    """Shows progress in the changing line of a terminal (status), elsewhere in a new line every few seconds."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._phase = ""  # the phase that was shown last
        self._phase_began = 0.0
        self._printed_at = time.monotonic()

    def show(self, progress: Progress) -> None:
        """Show the progress."""
        now = time.monotonic()
        is_new = progress.phase != self._phase
        if is_new:
            self._phase = progress.phase
            self._phase_began = now
        line = progress_line(progress, seconds=now - self._phase_began)

        silent = now - self._printed_at
        if self._status.console.is_terminal:
            self._status.update(line)
        elif silent >= INTERVAL or (is_new and silent >= INTERVAL_OF_PHASES):
            self._printed_at = now
            self._status.console.print(Text(line))


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
            parts.append(f"{duration(left)} left")
    return f"{progress.phase}: {', '.join(parts)}"
