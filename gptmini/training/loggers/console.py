"""Show the progress of a training run on the console and in train.log."""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise

from lightning.pytorch.callbacks import LambdaCallback
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from gptmini.console.numbers import duration
from gptmini.console.table import aligned
from gptmini.console.terminal import Screen
from gptmini.runs import STEP, Line, is_number, tags_of
from gptmini.training.loggers.logger import PlainLogger
from gptmini.training.trainer_settings import TrainerSettings

# Seconds between two plain progress lines. A user sees progress often, and the output stays short enough to read.
PLAIN_SECONDS = 5.0
SPARKS = 10  # number of validations in the sparkline
# Number of validations in the final table, from the first to the last validation. The best validation is added.
ROWS = 8

BLOCKS = "▁▂▃▄▅▆▇█"  # characters of the sparkline; the lowest character comes first

TOKENS = "train/tokens"  # this scalar grows by the same number in every step, and some validations do not log it

# The columns of the final table. Each heading maps to the tag of a scalar and the format of the scalar.
COLUMNS = {
    "tokens": (TOKENS, "{:,.0f}"),
    "train loss": ("train/loss", "{:.4f}"),
    "val loss": ("val/loss", "{:.4f}"),
    "bits/byte": ("val/bits_per_byte", "{:.4f}"),
    "val-train": ("val/gap", "{:+.4f}"),
}


class ConsoleLogger(PlainLogger):
    """A logger that shows a progress bar on a terminal, and prints plain lines elsewhere and to train.log.

    Only the first rank has this logger.

    Args:
        screen: prints on the console of the user and in train.log.
        settings: the number of steps, and after which steps a validation follows. Then only the validation prints.
        lines: for a resumed run, the lines of metrics.jsonl up to the step at which the run resumes.
    """

    def __init__(
        self, screen: Screen, settings: TrainerSettings, lines: Sequence[Line] = ()
    ) -> None:
        super().__init__()
        self.screen = screen
        self.print_line = screen.print_line  # logger.print_line calls it
        self.settings = settings
        self._console = screen.console

        # For each validation, a dict that maps each tag to the latest value of the scalar, and "step" to the step.
        self.validations: list[dict[str, float]] = []
        self._latest: dict[str, float] = {}  # maps each tag to the latest value of the scalar
        self._tokens_per_step: float | None = None  # None until train/tokens is logged
        self._bar: Progress | None = None
        self._start: tuple[float, int] | None = None  # time and step of the first logged metrics
        self._last_printed = -PLAIN_SECONDS  # time of the last progress line

        for line in lines:
            numbers = {tag: value for tag, value in tags_of(line).items() if is_number(value)}
            self._store(numbers, line[STEP])

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Show the latest loss, the validation loss or the speed, and the time left. Ignore scalars without a step."""
        if step is None:
            return

        now = time.monotonic()
        if self._start is None:
            self._start = (now, step)
        self._store(metrics, step)

        validated = "val/loss" in metrics
        # On a terminal, every step updates the progress bar. Elsewhere, each printed line stays visible, so print fewer
        # lines.
        self.show_step(step)
        is_progress = (
            now - self._last_printed >= PLAIN_SECONDS and not self.settings.validation_due(step)
        )
        if validated or is_progress:
            self._last_printed = now
            line = Text(f"step {step}/{self.settings.max_steps}  ")
            line.append_text(self._progress_text(step, now, validated=validated))
            self.print_line(line, on_console=validated or not self._console.is_terminal)
        if validated and overfitting_begins(self.validations):
            self.print_line(
                "overfit  val loss rose twice while train loss fell; try more text, a higher model.dropout or "
                "callbacks=early_stopping"
            )

    def show_step(self, step: int) -> None:
        """Update the progress bar, if there is one. Rich draws it at most ten times per second."""
        if self._start is None or not self._console.is_terminal:
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=16),
                TextColumn("{task.description}"),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=self.settings.max_steps)
            self._bar.start()

        text = self._progress_text(step, time.monotonic(), validated=False)
        self._bar.update(self._task, completed=step, description=str(text))

    def step_callback(self) -> LambdaCallback:
        """Return a callback that updates the progress bar after each optimizer step."""
        return LambdaCallback(
            on_train_batch_end=lambda trainer, *_: self.show_step(trainer.global_step)
        )

    def _store(self, metrics: Mapping[str, float], step: int) -> None:
        self._latest.update(metrics)
        if TOKENS in metrics and step > 0:
            self._tokens_per_step = metrics[TOKENS] / step
        if "val/loss" in metrics:
            validation = self._latest | {"step": step}
            if self._tokens_per_step is not None:
                validation[TOKENS] = self._tokens_per_step * step
            self.validations.append(validation)

    def final_table(self) -> list[str]:
        """Return the lines, of at most 71 characters, of a table of validations, among them the last and the best."""
        if not self.validations:
            return []

        last = len(self.validations) - 1
        best = min(range(last + 1), key=lambda i: _ordered(self.validations[i]["val/loss"]))
        # A long run has too many validations for a table.
        evenly_spaced = [round(i * last / (ROWS - 1)) for i in range(ROWS)]

        tags = set().union(*self.validations)
        columns = {name: column for name, column in COLUMNS.items() if column[0] in tags}
        rows = [["step", *columns, ""]]
        for i in sorted({best, *evenly_spaced}):
            validation = self.validations[i]
            row = [str(validation["step"])]
            for tag, form in columns.values():
                row.append(form.format(validation[tag]) if tag in validation else "")
            is_best = i == best and math.isfinite(validation["val/loss"])
            row.append("best" if is_best else "")
            rows.append(row)

        return aligned(rows, right=True)

    def finalize(self, status: str) -> None:
        """Remove the progress bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _progress_text(self, step: int, now: float, *, validated: bool) -> Text:
        # A line of 80 characters is too short for both the validation loss and the speed.
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
            seconds_left = seconds_per_step * (self.settings.max_steps - step)
            parts.append(Text(f"{duration(seconds_left)} left"))
        return Text("  ").join(parts)

    def _trend(self) -> Text:
        """Return the latest validation loss, an arrow for its direction, and a sparkline unless only ASCII prints."""
        losses = [validation["val/loss"] for validation in self.validations]
        is_ascii = self._console.options.ascii_only
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


def overfitting_begins(validations: Sequence[Mapping[str, float]]) -> bool:
    """Return whether the latest two validations are the first two in a row that show overfitting.

    Such a validation has a higher val/loss and a lower train/loss than the validation before it.
    """
    has_overfit = [
        now["val/loss"] > before["val/loss"]
        and now.get("train/loss", math.nan) < before.get("train/loss", math.nan)
        for before, now in pairwise(validations)
    ]
    twice = [all(pair) for pair in pairwise(has_overfit)]
    return twice.count(True) == 1 and twice[-1]


def sparkline(values: Sequence[float]) -> str:
    """Return one block character for each value. Return "?" for a value that is not finite.

    The heights of the blocks grow linearly from the lowest to the highest value.
    """
    finite = [value for value in values if math.isfinite(value)]
    low = min(finite, default=0.0)
    # If all values are equal, all values get the lowest block.
    spread = max(finite, default=0.0) - low or math.inf

    line = ""
    for value in values:
        height = (value - low) / spread  # from 0 to 1
        line += BLOCKS[round(height * (len(BLOCKS) - 1))] if math.isfinite(value) else "?"
    return line


def _ordered(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
