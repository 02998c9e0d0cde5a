"""What a training run shows on the console, and its plain copy in train.log."""

import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

PLAIN_SECONDS = 5.0  # between two plain progress lines: often enough to see life, rare enough to read
BLOCKS, DIGITS = "▁▂▃▄▅▆▇█", "01234567"  # of a sparkline, lowest first; where only ASCII can be shown the second
SPARKS = 10  # validations in the sparkline
ROWS = 8  # validations in the final table
COLUMNS = {  # of the final table: the scalar, and how it is written
    "tokens": ("train/tokens", "{:,.0f}"),
    "train loss": ("train/loss", "{:.4f}"),
    "val loss": ("val/loss", "{:.4f}"),
    "bits/byte": ("val/bits_per_byte", "{:.4f}"),
    "gap": ("val/gap", "{:+.4f}"),
}


class LastingConsole(Console):
    """A console that falls silent when its reader has gone: `| head` must not end a run."""

    def on_broken_pipe(self) -> None:
        """Rich would leave the program here."""
        self.quiet = True


class ConsoleLogger(Logger):
    """A progress bar on a terminal, plain lines elsewhere; every line goes to the log file too."""

    def __init__(
        self, console: Console, log_file: Console, max_steps: int, validations: Sequence[dict[str, float]] = ()
    ) -> None:
        """Take where to show what, the last step, and the validations before a resumed run: scalars, and their step."""
        super().__init__()
        self.console, self.log_file, self.max_steps = console, log_file, max_steps
        self.validations = list(validations)
        self._latest: dict[str, float] = {}
        self._bar: Progress | None = None
        self._start: tuple[float, int] | None = None  # time and step of the first metrics
        self._spoke = -PLAIN_SECONDS

    @property
    def name(self) -> str:
        """Lightning wants one."""
        return "console"

    @property
    def version(self) -> int:
        """Lightning wants one."""
        return 0

    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        """Show nothing: the script has printed what the run is."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Show the newest loss, validation loss, speed and time left."""
        now = time.monotonic()
        self._start = self._start or (now, step)
        self._latest.update(metrics)
        validated = "val/loss" in metrics
        if validated:
            self.validations.append(self._latest | {"step": step})
        if self.console.is_terminal:
            self._draw(step, now)
        if validated or now - self._spoke >= PLAIN_SECONDS:
            self._spoke = now
            line = Text(f"step {step}/{self.max_steps}  ").append_text(self._figures(step, now, validated))
            self.say(line, aloud=validated or not self.console.is_terminal)

    @rank_zero_only
    def say(self, line: str | Text, *, aloud: bool = True) -> None:
        """Write a line to the log file and, aloud, to the console too; each hears of it when the other takes none."""
        line = line if isinstance(line, Text) else printable(line)
        places = {"train.log": self.log_file} | ({"the console": self.console} if aloud else {})
        for name, place in places.items():
            try:
                place.print(line, markup=False, highlight=False)
            except OSError as error:
                other = self.console if place is self.log_file else self.log_file
                with suppress(OSError):  # the same disk may hold both
                    other.print(f"{name} not written: {error.strerror}", markup=False)

    def final_table(self) -> list[str]:
        """The run's validations, the last and the best among them, in lines of at most 71 characters; or none."""
        if not self.validations:
            return []
        last = len(self.validations) - 1
        best = min(range(last + 1), key=lambda i: _ordered(self.validations[i]["val/loss"]))
        shown = sorted({best, *(round(i * last / (ROWS - 1)) for i in range(ROWS))})
        used = {name: key for name, key in COLUMNS.items() if any(key[0] in row for row in self.validations)}
        rows = [["step", *used, ""]]
        for i in shown:
            row = self.validations[i]
            figures = [form.format(row[key]) if key in row else "" for key, form in used.values()]
            rows.append([str(row["step"]), *figures, "best" if i == best and math.isfinite(row["val/loss"]) else ""])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Take the bar off the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _trend(self) -> Text:
        """The newest validation loss, whether it is better than the one before, and the way that they took."""
        losses = [row["val/loss"] for row in self.validations]
        ascii_only = self.console.options.ascii_only
        trend = Text(f"val loss {losses[-1]:.4f} ")
        if len(losses) > 1:
            better = _ordered(losses[-1]) < _ordered(losses[-2])
            arrow = ("v" if better else "^") if ascii_only else ("↓" if better else "↑")
            trend.append(arrow + " ", style="green" if better else "red")
        return trend.append(sparkline(losses[-SPARKS:], DIGITS if ascii_only else BLOCKS))

    def _figures(self, step: int, now: float, validated: bool) -> Text:
        """Loss, validation loss or speed (a line has no room for both), and time left, as far as they are known."""
        parts, (start_time, start_step) = [], self._start
        if "train/loss" in self._latest:
            parts.append(Text(f"loss {self._latest['train/loss']:.4f}"))
        if validated:
            parts.append(self._trend())
        elif "work/tokens_per_second" in self._latest:
            parts.append(Text(f"{self._latest['work/tokens_per_second']:,.0f} tokens/s"))
        if step > start_step:
            left = (now - start_time) / (step - start_step) * (self.max_steps - step)
            parts.append(Text(f"{duration(left)} left"))
        return Text("  ").join(parts)

    def _draw(self, step: int, now: float) -> None:
        if self._bar is None:
            columns = (TextColumn("step {task.completed:.0f}/{task.total:.0f}"), BarColumn(bar_width=16))
            self._bar = Progress(*columns, TextColumn("{task.description}"), console=self.console, transient=True)
            self._task = self._bar.add_task("", total=self.max_steps)
            self._bar.start()
        self._bar.update(self._task, completed=step, description=str(self._figures(step, now, False)))


def printable(text: str) -> str:
    """Text that does nothing to a terminal but fill it: other characters than printable ones as their escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def past_validations(curves: dict[str, list[tuple[int, float]]]) -> list[dict[str, float]]:
    """What the final table shows of the validations that a run has behind it, from its curves, (step, value) by tag."""
    rows = []
    for step, _ in curves.get("val/loss", []):
        row = {"step": step}
        for tag, _ in COLUMNS.values():
            points = curves.get(tag, [])
            if n := bisect_right(points, step, key=lambda point: point[0]):
                row[tag] = points[n - 1][1]
        rows.append(row)
    return rows


def sparkline(values: Sequence[float], levels: str) -> str:
    """A sign for each value, levels[0] for the lowest; ? for one that is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(levels[round((value - low) * scale)] if math.isfinite(value) else "?" for value in values)


def _ordered(loss: float) -> float:
    """A loss that compares: one that is no number is the worst."""
    return loss if math.isfinite(loss) else math.inf


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, the largest two: 1 h 02 min, 3 min 05 s, 12 s."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
