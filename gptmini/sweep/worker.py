"""A worker of a sweep: takes one trial after the other, trains its run in another process, and tells the result."""

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
from gptmini.sweep.study import Sweep, Taken
from gptmini.user_error import UserError

MISTAKE = 2  # exit code of a run that ends by a mistake, which would come again
POLL = 0.5  # seconds between two looks at the trials of other workers
# The signals that end a sweep once its runs are saved; Windows lacks the last three.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
LONGEST_REASON = 300  # characters of why a trial has failed


class SweepEnd:
    """Keeps the first signal that asks a sweep to end, and passes it on; a second one ends the sweep at once."""

    def __init__(self) -> None:
        self.signal = 0  # number of the signal; 0 for none
        self._runs: set[subprocess.Popen] = set()  # processes that were not sent SIGTERM
        # A signal waits until a run that is being started is among the runs. The main thread, which handles signals,
        # may hold the lock itself.
        self._lock = threading.RLock()

    def run(self, command: Sequence[str], **options: Any) -> int:
        """Run a process, and return its exit code as subprocess.run does. `ask` sends it SIGTERM.

        options are those of subprocess.Popen. Nothing is started once the sweep is asked to end.
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
        """Send SIGTERM to every run once, so that it saves and ends; number is the signal that the sweep received."""
        self.signal = self.signal or number
        with self._lock:
            # A second SIGTERM could end a run unsaved, so a run is dropped after the first. It is dropped only then,
            # because another signal may interrupt this loop and end the sweep.
            while self._runs:
                process = next(iter(self._runs))
                process.terminate()
                self._runs.discard(process)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals during the block. One that the caller has turned off, as nohup does, stays off."""
        numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
        handlers_before = {number: signal.getsignal(number) for number in numbers}
        heeded = [number for number in numbers if handlers_before[number] is not signal.SIG_IGN]
        for number in heeded:
            signal.signal(number, self._note)
        try:
            yield
        finally:
            for number in heeded:
                signal.signal(number, handlers_before[number])

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: pass it on immediately, because a second signal may end this process at any time."""
        is_first = not self.signal
        self.ask(number)
        if not is_first and number in (signal.SIGINT, signal.SIGTERM):
            # The system ends the process, whatever its threads wait for.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@dataclass(frozen=True, kw_only=True)
class Worker:
    """Trains trials until none is left or the sweep is asked to end.

    A run has a session of its own, so that a Ctrl-C in the terminal reaches the sweep alone, which tells the run to
    save and end. The run inherits the lock of its trial: nobody else trains the trial while the run lives, even where
    the worker has died before the run has locked its own folder.
    """

    sweep: Sweep
    stopping: SweepEnd
    say: Callable[[str, str], None]  # tells the user: a topic, and a text beside it
    on_end: Callable[[Sweep], object]  # is called when a trial has ended or was given up
    command: Sequence[str]  # trains a run, before its overrides
    extra: Sequence[str] = ()  # overrides of this worker's runs beside those of the trial
    variables: Mapping[str, str] | None = None  # of the environment, for this worker's runs

    def work(self) -> None:
        """Take trials and train them. Where others train the last ones, wait: one of them may be cut off."""
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

    def _train(self, trial: Taken) -> None:
        """Train a trial until its run has ended by itself, or was killed too often."""
        number = trial.number
        values = " ".join(f"{key}={text}" for key, text in trial.texts.items())
        again = ", which goes on" if self.sweep.run_of(number).exists() else ""
        self.say("started", f"trial {number}: {values}{again}")

        retries = self.sweep.settings.retries
        reason = ""
        for attempt in range(retries + 1):
            began = time.monotonic()
            # The pruner may have ended the run, and the worker of that time died before it told the journal.
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
                self.say("again", f"trial {number} is not done: {reason}")

        reason = f"{reason} ({retries + 1} times)"
        self.sweep.give_up(number, reason)
        self.say("gave up", f"trial {number}: {reason}")
        self.on_end(self.sweep)

    def _run(self, trial: Taken) -> int:
        """Train the run of a trial in another process; returns the exit code, which is negative for a signal."""
        run = self.sweep.run_of(trial.number)
        output = self._output_of(trial.number)
        output.parent.mkdir(exist_ok=True)
        overrides = self.sweep.space.overrides(trial.texts)

        # What a run prints goes into a file, because a pipe would break when the worker is killed.
        with output.open("ab") as file:
            return self.stopping.run(
                [*self.command, *overrides, *self.extra, f"folder={run}"],
                env={**os.environ, **(self.variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=[trial.lock],
                start_new_session=True,
            )

    def _conclude(self, number: int, seconds: float) -> None:
        """Write down the result of a run that has ended by itself."""
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
            self.say("pruned", f"trial {number}")
        elif best is None:
            self._fail(number, "it kept no best validation, because none had a finite loss")
            return
        else:
            self.sweep.finish(number, best["bits_per_byte" if self.sweep.space.by_bits else "loss"])
        self.on_end(self.sweep)

    def _fail(self, number: int, reason: str) -> None:
        self.sweep.fail(number, reason)
        self.say("failed", f"trial {number}: {reason}")
        self.on_end(self.sweep)

    def _is_pruned(self, number: int) -> bool:
        """Whether the pruner has told the run of a trial to end."""
        return self.sweep.trials()[number].user_attrs.get(PRUNED_AT) is not None

    def _output_of(self, number: int) -> Path:
        """The file for what the runs of a trial print. It cannot lie in the run's folder, which the run makes."""
        return self.sweep.folder / "output" / f"{number}.txt"

    def _reason(self, number: int, code: int) -> str:
        """Why a run has ended before it was done: the signal that has killed it, or the last line that it printed."""
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        printed = self._output_of(number).read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        last = lines[-1].removeprefix("error: ") if lines else f"exit code {code}"
        return last[:LONGEST_REASON]


def best_of_run(run: Path) -> dict[str, Any] | None:
    """The validation of a run with the lowest loss: loss, bits_per_byte and step; None if none was finite.

    Raises UserError: the run's last checkpoint is damaged. OSError: it is not there.
    """
    checkpoint = read_checkpoint(run / "checkpoints" / "last.ckpt", mapped=True, is_checked=True)
    return checkpoint["callbacks"]["RunCheckpoints"]["best"]
