"""Train the trials of a sweep, each in a process. A signal saves and ends all runs."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from gptmini.console.printing import print_topic
from gptmini.job.sweep_table import show_table
from gptmini.job.sweep_trials import Row, Trials
from gptmini.runs import is_run, is_training
from gptmini.system.process import MISUSE, OUT_OF_RESOURCES
from gptmini.system.signals import FirstSignal

POLL = 0.2  # seconds between two checks of the runs
LONGEST_REASON = 300  # maximum number of characters


@dataclass(kw_only=True)
class SweepLoop:
    """Starts a run for each open trial, several at a time, until no trial is left or a signal arrives.

    Each run is in its own session of the system, so Ctrl-C in the terminal reaches only the sweep. After the first
    signal, the sweep sends SIGTERM to the runs, waits until each run has saved and ended, and ends. A second Ctrl-C
    ends the sweep immediately.
    """

    trials: Trials  # other processes may train trials of the same sweep
    command: Sequence[str]  # the command that trains a run, without the overrides of its trial
    variables: Sequence[Mapping[str, str]]  # for each run at a time, its environment variables
    stdin: Path  # the file that each run reads as stdin
    retries: int  # how often a run is restarted if it failed, unless the user has made a mistake
    # The running processes with the number and the lock of their trial, by their position in `variables`.
    running: dict[int, tuple[int, FileLock, subprocess.Popen]] = field(default_factory=dict)
    failures: Counter[int] = field(default_factory=Counter)  # number of failed starts by trial
    rows: list[Row] = field(default_factory=list)  # the table that was printed last
    signals: FirstSignal = field(default_factory=FirstSignal)

    def run(self) -> int:
        """Train the open trials. Return the number of the signal that ended the sweep, or 0."""
        with self.signals:
            try:
                while not self.signals.number and self._poll():
                    time.sleep(POLL)
                if self.signals.number:
                    self._terminate()
                    line = "saving the runs; run the same command to resume the sweep"
                    print_topic("stopped", line)
                while self._poll():
                    time.sleep(POLL)
                # Other processes may have trained the last trials.
                self.rows = show_table(self.trials, self.rows)
            finally:
                self._terminate()  # after an error, such as a full disk
        return self.signals.number

    def _poll(self) -> bool:
        """Record the runs that have ended, and start others. Return whether a trial is left."""
        for place, (number, lock, process) in list(self.running.items()):
            code = process.poll()
            if code is not None:
                del self.running[place]
                self._end(number, code)
                lock.release()
                if not self.signals.number:
                    self.rows = show_table(self.trials, self.rows)

        given_up = [number for number, n in self.failures.items() if n > self.retries]
        for place in range(len(self.variables)):
            if place not in self.running and not self.signals.number:
                trial = self.trials.take(given_up)
                if trial is not None:
                    self._start(place, *trial)
        is_left = not self.signals.number and bool(self.trials.open_trials(given_up))
        return is_left or bool(self.running)

    def _start(self, place: int, number: int, lock: FileLock) -> None:
        run = self.trials.folder / str(number)
        values = self.trials.values_of(number)
        words = " ".join(f"{key}={text}" for key, text in values.items())
        resumed = " (resumed)" if is_run(run) else ""
        print_topic("started", f"trial {number}: {words}{resumed}")

        # The output goes to a file, because a pipe would break when the sweep is killed.
        with self._output_of(number).open("ab") as output, self.stdin.open("rb") as stdin:
            process = subprocess.Popen(
                [*self.command, *self.trials.space.overrides(values), f"folder={run}"],
                env={**os.environ, **self.variables[place]},
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[place] = (number, lock, process)

    def _end(self, number: int, code: int) -> None:
        # The run of a sweep that was killed may still be training.
        is_busy = code == OUT_OF_RESOURCES and is_training(self.trials.folder / str(number))
        was_stopped = bool(self.signals.number) and code == -signal.SIGTERM
        if is_busy or was_stopped:
            return
        reason = self._reason(number, code) if code else None
        self.trials.record(number, code, reason)

        if code == MISUSE:
            print_topic("failed", f"trial {number}: {reason}")
        elif code and not self.signals.number:
            self.failures[number] += 1
            has_left = self.failures[number] <= self.retries
            print_topic("again" if has_left else "gave up", f"trial {number}: {reason}")

    def _reason(self, number: int, code: int) -> str:
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        printed = self._output_of(number).read_text(encoding="utf-8", errors="replace")
        last = printed.rstrip().rpartition("\n")[2].strip().removeprefix("error: ")
        return (last or f"exit code {code}")[:LONGEST_REASON]

    def _output_of(self, number: int) -> Path:
        """Return the file for the output of a run, whose own folder does not exist yet."""
        return self.trials.folder / "output" / f"{number}.txt"

    def _terminate(self) -> None:
        for _, _, process in self.running.values():
            process.terminate()
