"""What a training run shows on the console, and its plain copy in train.log."""

import time

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

PLAIN_SECONDS = 5.0  # between two plain progress lines: often enough to see life, rare enough to read


class LastingConsole(Console):
    """A console that falls silent when its reader has gone: `| head` must not end a run."""

    def on_broken_pipe(self) -> None:
        """Rich would leave the program here."""
        self.quiet = True


class ConsoleLogger(Logger):
    """A progress bar on a terminal, plain lines elsewhere; every line goes to the log file too."""

    def __init__(self, console: Console, log_file: Console, max_steps: int) -> None:
        super().__init__()
        self.console, self.log_file, self.max_steps = console, log_file, max_steps
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
        if self.console.is_terminal:
            self._draw(step, now)
        if validated or now - self._spoke >= PLAIN_SECONDS:
            self._spoke = now
            figures = self._figures(step, now, with_validation=validated)
            line = "  ".join((f"step {step}/{self.max_steps}", *figures))
            self.say(line, aloud=validated or not self.console.is_terminal)

    @rank_zero_only
    def say(self, line: str, *, aloud: bool = True) -> None:
        """Write a line to the log file and, aloud, to the console too."""
        if aloud:
            self.console.print(line, markup=False, highlight=False)
        try:
            self.log_file.print(line, markup=False, highlight=False)
        except OSError as error:
            self.console.print(f"train.log not written: {error.strerror}", markup=False)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Take the bar off the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _figures(self, step: int, now: float, *, with_validation: bool) -> list[str]:
        parts = []
        for key, text in (("train/loss", "loss {:.4f}"), ("val/loss", "val loss {:.4f}")):
            if key in self._latest and (with_validation or key != "val/loss"):
                parts.append(text.format(self._latest[key]))
        if "tokens_per_second" in self._latest:
            parts.append(f"{self._latest['tokens_per_second']:,.0f} tokens/s")
        start_time, start_step = self._start
        if step > start_step:
            left = (now - start_time) / (step - start_step) * (self.max_steps - step)
            parts.append(f"{duration(left)} left")
        return parts

    def _draw(self, step: int, now: float) -> None:
        if self._bar is None:
            columns = (TextColumn("step {task.completed:.0f}/{task.total:.0f}"), BarColumn(bar_width=16))
            self._bar = Progress(*columns, TextColumn("{task.description}"), console=self.console, transient=True)
            self._task = self._bar.add_task("", total=self.max_steps)
            self._bar.start()
        self._bar.update(
            self._task, completed=step, description="  ".join(self._figures(step, now, with_validation=True))
        )


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, the largest two: 1 h 02 min, 3 min 05 s, 12 s."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
