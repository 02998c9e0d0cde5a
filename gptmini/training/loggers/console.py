"""The console output of a training run, and its plain copy in train.log."""

import errno
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from gptmini.report.tables import aligned, printable
from gptmini.runs.metrics import STEP, Line, is_number, tags_of

# Seconds between two plain progress lines: often enough to see progress, and readable.
PLAIN_SECONDS = 5.0
SPARKS = 10  # validations in the sparkline
ROWS = 8  # validations in the final table: first, last and others between them; the best validation is added

BLOCKS = "▁▂▃▄▅▆▇█"  # characters of the sparkline, lowest first

TOKENS = "train/tokens"  # grows by the same number in every step; not logged at every validation

# Columns of the final table: heading -> (tag of a scalar, its format).
COLUMNS = {
    "tokens": (TOKENS, "{:,.0f}"),
    "train loss": ("train/loss", "{:.4f}"),
    "val loss": ("val/loss", "{:.4f}"),
    "bits/byte": ("val/bits_per_byte", "{:.4f}"),
    "gap": ("val/gap", "{:+.4f}"),
}


class BrokenPipeConsole(Console):
    """A console that stops printing when its reader is gone: after `| head`, or after the terminal was closed."""

    def on_broken_pipe(self) -> None:
        """Stop printing from now on. Rich would exit the program here."""
        self.quiet = True

    def _check_buffer(self) -> None:
        """Write the buffer, and treat a closed terminal like a closed pipe."""
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.on_broken_pipe()


class ConsoleLogger(Logger):
    """A logger that shows a progress bar on a terminal, and plain lines elsewhere. It writes every line to train.log.

    Args:
        console: the console of the user.
        log_file: a console that writes to train.log.
        max_steps: last optimizer step of the run.
        lines: lines of metrics.jsonl of a resumed run, up to the step at which it resumes.
        validation_due: whether a validation follows a step. If so, the validation's line is the step's only line.
    """

    def __init__(
        self,
        console: Console,
        log_file: Console,
        max_steps: int,
        lines: Sequence[Line] = (),
        validation_due: Callable[[int], bool] = lambda step: False,
    ) -> None:
        super().__init__()
        self.console = console
        self.log_file = log_file
        self.max_steps = max_steps

        # For each validation: the latest value of each scalar, by tag, and the step as "step".
        self.validations: list[dict[str, float]] = []
        self._validation_due = validation_due
        self._latest: dict[str, float] = {}  # latest value of each scalar, by tag
        self._tokens_per_step: float | None = None  # None until train/tokens is logged
        self._bar: Progress | None = None
        self._start: tuple[float, int] | None = None  # time and step of the first metrics
        self._last_printed = -PLAIN_SECONDS  # time of the last progress line

        for line in lines:
            numbers = {tag: value for tag, value in tags_of(line).items() if is_number(value)}
            self._store(numbers, line[STEP])

    @property
    def name(self) -> str:
        """The logger's name; required by Lightning."""
        return "console"

    @property
    def version(self) -> int:
        """The logger's version; required by Lightning, always 0."""
        return 0

    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        """Do nothing: the command has already described the run."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Show the latest loss, validation loss, speed and time left, from scalars by tag.

        Ignore scalars without a step. A user's callback may log them.
        """
        if step is None:
            return

        now = time.monotonic()
        if self._start is None:
            self._start = (now, step)
        self._store(metrics, step)

        validated = "val/loss" in metrics
        # On a terminal, the bar moves with every point. Elsewhere lines stay visible, so print fewer lines.
        if self.console.is_terminal:
            self._draw_bar(step, now)
        is_progress = now - self._last_printed >= PLAIN_SECONDS and not self._validation_due(step)
        if validated or is_progress:
            self._last_printed = now
            line = Text(f"step {step}/{self.max_steps}  ")
            line.append_text(self._progress_text(step, now, validated=validated))
            self.print_line(line, on_console=validated or not self.console.is_terminal)

    def _store(self, metrics: Mapping[str, float], step: int) -> None:
        """Store the latest value of each scalar, and a copy of all values at a validation."""
        self._latest.update(metrics)
        if TOKENS in metrics and step > 0:
            self._tokens_per_step = metrics[TOKENS] / step
        if "val/loss" in metrics:
            validation = self._latest | {"step": step}
            if self._tokens_per_step is not None:
                validation[TOKENS] = self._tokens_per_step * step
            self.validations.append(validation)

    @rank_zero_only
    def print_line(self, line: str | Text, *, on_console: bool = True) -> None:
        """Write a line to train.log and, if on_console is true, to the console.

        Ignore an OSError, such as a full disk: the other output still gets the line. MetricsLogger writes to the same
        folder and reports the error.
        """
        if not isinstance(line, Text):
            line = printable(line)

        for console in [self.log_file, self.console] if on_console else [self.log_file]:
            with suppress(OSError):
                console.print(line, markup=False, highlight=False, emoji=False)

    def final_table(self) -> list[str]:
        """Return a table of validations, including the last and the best validation, as lines of at most 71 characters.

        The list is empty if the run has no validation.
        """
        if not self.validations:
            return []

        last = len(self.validations) - 1
        best = min(range(last + 1), key=lambda i: _ordered(self.validations[i]["val/loss"]))
        # For a long run, show the first and the last validation, some evenly spaced validations between them, and the
        # best validation.
        evenly_spaced = [round(i * last / (ROWS - 1)) for i in range(ROWS)]
        shown = sorted({best, *evenly_spaced})

        logged = set().union(*self.validations)  # tags that any validation has
        used = {name: column for name, column in COLUMNS.items() if column[0] in logged}
        rows = [["step", *used, ""]]
        for i in shown:
            validation = self.validations[i]
            row = [str(validation["step"])]
            for tag, form in used.values():
                row.append(form.format(validation[tag]) if tag in validation else "")
            is_best = i == best and math.isfinite(validation["val/loss"])
            row.append("best" if is_best else "")
            rows.append(row)

        return aligned(rows, justify=str.rjust)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Remove the progress bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw_bar(self, step: int, now: float) -> None:
        """Create the progress bar if needed, and update it."""
        if self._bar is None:
            self._bar = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=16),
                TextColumn("{task.description}"),
                console=self.console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=self.max_steps)
            self._bar.start()

        text = self._progress_text(step, now, validated=False)
        self._bar.update(self._task, completed=step, description=str(text))

    def _progress_text(self, step: int, now: float, *, validated: bool) -> Text:
        """Return the loss, the validation loss or the speed, and the time left, as far as they are known.

        80 characters are too few for validation loss and speed. Lines of a validation show the validation loss. All
        other lines show the speed.
        """
        parts = []
        if "train/loss" in self._latest:
            parts.append(Text(f"loss {self._latest['train/loss']:.4f}"))
        if validated:
            parts.append(self._trend())
        elif "work/tokens_per_second" in self._latest:
            parts.append(Text(f"{self._latest['work/tokens_per_second']:,.0f} tokens/s"))

        assert self._start is not None  # log_metrics has set it
        start_time, start_step = self._start
        if step > start_step:
            seconds_per_step = (now - start_time) / (step - start_step)
            seconds_left = seconds_per_step * (self.max_steps - step)
            parts.append(Text(f"{duration(seconds_left)} left"))
        return Text("  ").join(parts)

    def _trend(self) -> Text:
        """Return the latest validation loss, an arrow (down or up from the previous loss), and a sparkline.

        An ASCII console gets no sparkline.
        """
        losses = [validation["val/loss"] for validation in self.validations]
        is_ascii = self.console.options.ascii_only
        down, up = ("v", "^") if is_ascii else ("↓", "↑")

        parts = [Text(f"val loss {losses[-1]:.4f}")]
        if len(losses) > 1:
            if _ordered(losses[-1]) < _ordered(losses[-2]):
                parts.append(Text(down, style="green"))
            else:
                parts.append(Text(up, style="red"))
        if not is_ascii:
            parts.append(Text(sparkline(losses[-SPARKS:])))
        return Text(" ").join(parts)


def sparkline(values: Sequence[float]) -> str:
    """Return one block character per value, scaled linearly from the lowest to the highest value; "?" if not finite."""
    finite = [value for value in values if math.isfinite(value)]
    low = min(finite, default=0.0)
    spread = max(finite, default=0.0) - low or math.inf  # equal values all have the lowest block

    line = ""
    for value in values:
        height = (value - low) / spread  # from 0 to 1
        line += BLOCKS[round(height * (len(BLOCKS) - 1))] if math.isfinite(value) else "?"
    return line


def _ordered(loss: float) -> float:
    """Return a loss for comparisons; a loss that is not finite counts as infinity."""
    return loss if math.isfinite(loss) else math.inf


def duration(seconds: float) -> str:
    """Format seconds with their largest two units: 1 h 02 min, 3 min 05 s, 12 s."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {seconds:02d} s"
    return f"{seconds} s"
