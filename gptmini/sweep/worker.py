"""A worker of a sweep. It takes a trial, trains the run in another process, records the result, and repeats this."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gptmini.checkpoint.file import read_checkpoint
from gptmini.sweep.journal import BEST, PRUNED_AT, SECONDS
from gptmini.sweep.study import ClaimedTrial, Sweep
from gptmini.user_error import UserError

MISTAKE = 2  # exit code of a run with a user error; a second attempt would fail too
POLL = 0.5  # seconds between two checks of the trials of other workers
# Signals that end a sweep after its runs are saved. Windows does not have SIGHUP, SIGUSR1 and SIGUSR2.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
LONGEST_REASON = 300  # maximum number of characters


class SweepStop:
    """The request to end a sweep. The first signal is passed on to the runs. A second signal ends the sweep."""

    def __init__(self) -> None:
        self.signal = 0  # number of the first signal; 0 for none
        self._runs: set[subprocess.Popen] = set()  # processes that have not been sent SIGTERM
        # While a run is being started, this lock makes a signal wait until the run is in _runs. The lock is reentrant,
        # because the main thread handles signals and may already hold the lock.
        self._lock = threading.RLock()

    def run(self, command: Sequence[str], **options: Any) -> int:
        """Run a process, and return its exit code. The method `ask` sends SIGTERM to the process.

        `options` are keyword arguments of subprocess.Popen. After a request to end the sweep, do not start the process.
        """
        with self._lock:
            if self.signal:
                return -signal.SIGTERM
            process = subprocess.Popen(command, **options)
            self._runs.add(process)

        code = process.wait()
        with self._lock:
            self._runs.discard(process)
        return code

    def ask(self, number: int) -> None:
        """Send SIGTERM to every run once, so that each run saves and ends.

        `number` is the number of the signal that the sweep received.
        """
        self.signal = self.signal or number
        with self._lock:
            # A second SIGTERM could end a run unsaved, so remove each run after its first SIGTERM. Do not remove it
            # earlier, because another signal may interrupt this loop and end the sweep.
            while self._runs:
                process = next(iter(self._runs))
                process.terminate()
                self._runs.discard(process)

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Catch SIGNALS during the block. Leave signals that this process ignores, such as SIGHUP under nohup."""
        numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
        handlers_before = {number: signal.getsignal(number) for number in numbers}
        caught = [number for number in numbers if handlers_before[number] is not signal.SIG_IGN]
        for number in caught:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number in caught:
                signal.signal(number, handlers_before[number])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on to the runs immediately, because a second signal may end this process at any time."""
        is_first = not self.signal
        self.ask(number)
        if not is_first and number in (signal.SIGINT, signal.SIGTERM):
            # The default handler ends this process even if its threads are waiting for runs.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker that takes trials and trains their runs, until no trial is left or the sweep is asked to end.

    Each run has its own session, so Ctrl-C in the terminal reaches only the sweep. The sweep then sends SIGTERM to the
    run. The run saves and ends. The run's process holds the lock of the trial. While this process exists, no
    other worker takes the trial. This is true even if the worker dies before the run has locked its own folder.
    """

    sweep: Sweep
    stopping: SweepStop
    print_topic: Callable[[str, str], None]  # prints a topic and a text
    on_end: Callable[[Sweep], object]  # called after a trial has ended or was given up
    command: Sequence[str]  # the command that trains a run, without overrides
    extra: Sequence[str] = ()  # overrides that this worker adds to each run
    variables: Mapping[str, str] | None = None  # environment variables added for this worker's runs
    stdin: Path = Path(os.devnull)  # the file that each run reads as stdin

    def work(self) -> None:
        """Take trials and train their runs, until no trial is left.

        While other workers train the last trials, wait. If a trial is interrupted, take it.
        """
        while not self.stopping.signal:
            trial = self.sweep.take()
            if trial is not None:
                try:
                    self._train(trial)
                finally:
                    trial.release()
            elif self.sweep.is_over():
                return
            else:
                time.sleep(POLL)

    def _train(self, trial: ClaimedTrial) -> None:
        """Train the run of a trial, until the run has ended or has been killed too often."""
        number = trial.number
        values = " ".join(f"{key}={text}" for key, text in trial.texts.items())
        resumed = " (resumed)" if self.sweep.run_of(number).exists() else ""
        self.print_topic("started", f"trial {number}: {values}{resumed}")

        retries = self.sweep.settings.retries
        reason = ""
        for attempt in range(retries + 1):
            began = time.monotonic()
            # The pruner may have ended the run earlier, but the worker may have died before it recorded the result.
            is_pruned = self._is_pruned(number)
            code = 0 if is_pruned else self._run(trial)
            if code == 0:
                self._conclude(number, time.monotonic() - began)
                return
            if self.stopping.signal:
                return

            reason = self._reason(number, code)
            if code == MISTAKE:
                self._fail(number, reason)
                return
            if attempt < retries:
                self.print_topic("again", f"retrying trial {number}: {reason}")

        reason = f"{reason} (attempts: {retries + 1})"
        self.sweep.give_up(number, reason)
        self.print_topic("gave up", f"trial {number}: {reason}")
        self.on_end(self.sweep)

    def _run(self, trial: ClaimedTrial) -> int:
        """Train the run of a trial in another process, and return the exit code of this process.

        The exit code is negative if a signal killed the process.
        """
        run = self.sweep.run_of(trial.number)
        output = self._output_of(trial.number)
        output.parent.mkdir(exist_ok=True)
        overrides = self.sweep.space.overrides(trial.texts)

        # The output goes to a file, because a pipe would break when the worker is killed.
        with output.open("ab") as file, self.stdin.open("rb") as stdin:
            return self.stopping.run(
                [*self.command, *overrides, *self.extra, f"folder={run}"],
                env={**os.environ, **(self.variables or {})},
                stdin=stdin,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=[trial.lock],
                start_new_session=True,
            )

    def _conclude(self, number: int, seconds: float) -> None:
        """Record the result of a run that exited with code 0."""
        is_pruned = self._is_pruned(number)
        try:
            best = best_of_run(self.sweep.run_of(number))
        except (UserError, OSError) as error:
            if not is_pruned:
                self._fail(number, str(error))
                return
            best = None

        self.sweep.note(number, **{BEST: best, SECONDS: seconds})
        if is_pruned:
            self.sweep.prune(number)
            self.print_topic("pruned", f"trial {number}")
        elif best is None:
            self._fail(number, "no validation loss was finite")
            return
        else:
            self.sweep.finish(number, best["bits_per_byte" if self.sweep.space.by_bits else "loss"])
        self.on_end(self.sweep)

    def _fail(self, number: int, reason: str) -> None:
        self.sweep.fail(number, reason)
        self.print_topic("failed", f"trial {number}: {reason}")
        self.on_end(self.sweep)

    def _is_pruned(self, number: int) -> bool:
        """Return whether the pruner has ended the run of a trial."""
        return self.sweep.trials()[number].user_attrs.get(PRUNED_AT) is not None

    def _output_of(self, number: int) -> Path:
        """Return the file for the output of the run of a trial.

        This file is not in the folder of the run, because this folder does not exist before the run starts.
        """
        return self.sweep.folder / "output" / f"{number}.txt"

    def _reason(self, number: int, code: int) -> str:
        """Return the reason why a run failed. It names the signal that killed the run, or is the last printed line."""
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        printed = self._output_of(number).read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        last = lines[-1].removeprefix("error: ") if lines else f"exit code {code}"
        return last[:LONGEST_REASON]


def best_of_run(run: Path) -> dict[str, Any] | None:
    """Return the loss, the bits per byte and the step of the validation with the lowest loss, by name.

    Return None if no loss was finite. Raises UserError if the file last.ckpt of the run is damaged, and OSError if this
    file is missing.
    """
    checkpoint = read_checkpoint(run / "checkpoints" / "last.ckpt", mapped=True, is_checked=True)
    return checkpoint["callbacks"]["RunCheckpoints"]["best"]
