"""The process that a sweep's user has started: it begins runs, waits for them, and tells what came of them."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.commands.signals import PassedSignals, passing_signals_on
from gptmini.commands.sweep_observer import Observer
from gptmini.commands.sweep_orders import Orders
from gptmini.commands.sweep_space import Space
from gptmini.commands.sweep_table import Row, best_of, lines_of, write_csv
from gptmini.commands.trials import TrialJob
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.search import Launcher, Result, SearchSettings, Study, TrialFolder
    from gptmini.search.launchers import Job

POLL = 0.5  # seconds between two looks at the runs
# Seconds until a run that was asked to end is asked again. One that still imports its libraries hears nothing, and a
# cluster takes its time.
ASK_AGAIN = {"local": 2.0, "slurm": 60.0}


@dataclass
class Active:
    """A trial that is being trained."""

    number: int
    folder: "TrialFolder"
    job: "Job | None"  # None for a run of this machine that an earlier start of the sweep has begun
    gpus: str | None
    asked_at: float | None = None  # when the run was asked to end, in seconds of time.monotonic
    is_pruned: bool = False


class Driver:
    """Trains the trials of a sweep, several at a time, until none is left or a signal comes.

    Args:
        folder: of the sweep, which this process has locked.
        study: which values are tried.
        launcher: starts the runs.
        space: what is varied, and what holds for every run.
        settings: how the sweep chooses values.
        identity: tells this sweep from others that had the same folder.
        by_bits: whether runs are compared by bits per byte instead of by their loss.
        config_dir: a folder of the user's own that adds options to the groups.
    """

    def __init__(
        self,
        *,
        folder: Path,
        study: "Study",
        launcher: "Launcher",
        space: Space,
        settings: "SearchSettings",
        identity: str,
        by_bits: bool,
        config_dir: str | None,
    ) -> None:
        self.folder = folder
        self.study = study
        self._launcher = launcher
        self._settings = settings
        self._seen = Observer(folder, study, identity, by_bits=by_bits)
        self._orders = Orders(space, launcher.settings, config_dir)
        self._by_bits = by_bits
        self._keys = [dimension.key for dimension in space.dimensions]
        self._active: dict[int, Active] = {}
        # Trials that an earlier start of the sweep has begun, and nobody trains.
        self._left: list[int] = []
        self._told: list[Row] = []  # what the table showed last
        self._starts: dict[int, int] = {}  # of each trial, by this process

    def run(self) -> int:
        """Train what is left of the sweep; return the number of the signal that has ended it, 0 for none."""
        settings = self._launcher.settings
        _say(
            "sweep",
            f"{self.folder}: {self.study.n_trials} trials ({self.study.sampler} of {', '.join(self._keys)}), "
            f"{settings.jobs} at once, {settings.cluster}",
        )

        with passing_signals_on() as signals:
            self._take_up()

            while not signals.first:
                self._settle_all(stopping=False)
                self._start_more()
                if not self._active and not self._has_more():
                    break
                time.sleep(POLL)

            if signals.first:
                self._end_runs(signals)
        return signals.first

    def _end_runs(self, signals: PassedSignals) -> None:
        """Let the runs of this machine save and end; jobs of a cluster go on, and need no process of the user."""
        self._say_stopping()
        if self._launcher.settings.cluster == "slurm":
            return
        while self._active:
            if signals.n_signals > 1:
                self._say_left()
                return
            self._ask_to_end(self._active.values())
            time.sleep(POLL)
            self._settle_all(stopping=True)

    def say_ending(self) -> bool:
        """Print the table and the best trial; return whether every trial has finished."""
        rows = self._seen.rows(self._active)
        self._say_table(rows)

        best = best_of(rows, by_bits=self._by_bits)
        if best is not None:
            figures = []
            if best.loss is not None:
                figures.append(f"val loss {best.loss:.4f}")
            if best.bits_per_byte is not None:
                figures.append(f"{best.bits_per_byte:.4f} bits per byte")
            if self._by_bits:
                figures.reverse()
            place = best.run or "whose folder is gone"
            _say("best", f"{', '.join(figures)}, step {best.step}: trial {best.number}, {place}")
            _say("train", self._orders.command_for(best.texts))

        n_failed = len([row for row in rows if row.state == "failed"])
        if n_failed:
            _say(
                "failed",
                f"{n_failed} of {len(rows)}, which are not tried again; name=OTHER begins anew",
            )

        n_given_up = len([row for row in rows if row.state == "waiting" and row.reason])
        if n_given_up:
            _say("gave up", f"{n_given_up} of {len(rows)}; the same command tries them again")

        all_done = all(row.state in ("done", "pruned") for row in rows)
        return all_done and len(rows) >= self.study.n_trials

    def _has_more(self) -> bool:
        """Whether a trial is left to be begun."""
        return bool(self._left) or self.study.n_begun < self.study.n_trials

    def _has_room(self) -> bool:
        """Whether another run may be started beside those that are being trained."""
        is_below = len(self._active) < self._launcher.settings.jobs
        return is_below and self._launcher.has_free_gpus()

    def _take_up(self) -> None:
        """Look at every trial that an earlier start of the sweep has begun, and not seen the end of."""
        from gptmini.search import TrialFolder

        for trial in self.study.trials:
            if trial.state.name != "RUNNING":
                continue
            folder = TrialFolder(self.folder, trial.number)
            cluster = self._launcher.settings.cluster
            job = self._launcher.job_of(folder.read_job(cluster))
            is_pruned = "pruned_at" in self.study.facts_of(trial.number)
            active = Active(trial.number, folder, job, gpus=None, is_pruned=is_pruned)
            if folder.read_result() is not None or self._is_alive(active) or is_pruned:
                order = folder.read_order()
                if order is not None:
                    before = order.environment.get("CUDA_VISIBLE_DEVICES")
                    active.gpus = self._launcher.keep_gpus(before)
                self._active[trial.number] = active
            else:
                self._left.append(trial.number)

    def _start_more(self) -> None:
        """Begin trials until as many run as may run at once; those that were cut off come first."""
        while self._has_room() and self._has_more():
            number = self._left.pop(0) if self._left else self.study.begin()
            self._start(number)

    def _start(self, number: int) -> None:
        """Start the process of a trial, which begins the trial's run or goes on with it."""
        from gptmini.search import TrialFolder

        folder = TrialFolder(self.folder, number)
        texts = self.study.texts(number)
        gpus = self._launcher.take_gpus()
        has_begun = self._seen.run_of(number) is not None
        order = self._orders.order_of(
            number,
            texts,
            before=folder.read_order() if has_begun else None,
            job=self._seen.job_name(number),
            gpus=gpus,
        )
        folder.prepare_start(order)

        self.study.take_up(number)
        job = self._launcher.submit(TrialJob(str(self.folder.absolute()), number))
        folder.write_job(self._launcher.settings.cluster, str(job.job_id))
        self._starts[number] = self._starts.get(number, 0) + 1
        self._active[number] = Active(number, folder, job, gpus)
        values = " ".join(f"{key}={text}" for key, text in texts.items())
        again = ", which goes on" if has_begun else ""
        _say("started", f"trial {number}: {values}{again}")

    def _settle_all(self, *, stopping: bool) -> None:
        """Look at every trial that is being trained, and print the table if one has finished."""
        finished = [
            active
            for active in list(self._active.values())
            if self._settle(active, stopping=stopping)
        ]
        if finished:
            self._say_table(self._seen.rows(self._active))

    def _settle(self, active: Active, *, stopping: bool) -> bool:
        """Look at a trial: whether it has finished, has to be started again, or is to be pruned.

        stopping says whether the sweep ends, so that nothing is started again. Returns whether the trial has finished.
        """
        is_local = self._launcher.settings.cluster == "local"
        is_alive = self._is_alive(active)
        result = active.folder.read_result()
        if is_alive and (result is None or is_local):
            self._consider_pruning(active)
            return False

        del self._active[active.number]
        self._launcher.give_back(active.gpus)
        if result is not None:
            self._tell(active.number, result)
            return True
        if active.is_pruned:
            self.study.prune(active.number)
            _say("pruned", f"trial {active.number}")
            return True
        if stopping:
            return False

        n_starts = self._starts.get(active.number, 0)
        if n_starts > self._settings.retries:
            trouble = active.folder.read_trouble()
            reason = f"its process ended {n_starts} times before the run was done"
            if trouble is not None:
                reason = f"{trouble} ({n_starts} times)"
            self.study.give_up(active.number, reason)
            _say("gave up", f"trial {active.number}: {reason}")
            return True

        trouble = active.folder.read_trouble() or "its process was killed"
        _say("again", f"trial {active.number} is not done: {trouble}")
        self._left.append(active.number)
        return False

    def _tell(self, number: int, result: "Result") -> None:
        """Write down the result of a run that has ended by itself."""
        value = result.bits_per_byte if self._by_bits else result.loss
        if result.reason is not None or value is None:
            reason = result.reason or "it has no value"
            self.study.fail(number, reason)
            _say("failed", f"trial {number}: {reason}")
            return
        self.study.report(number, self._seen.points_of(number))
        mistake = self._trained_on_other_text(number)
        if mistake is not None:
            self.study.fail(number, mistake)
            _say("failed", f"trial {number}: {mistake}")
            return
        self.study.finish(number, value)

    def _trained_on_other_text(self, number: int) -> str | None:
        """Why a trial cannot be compared with those that are done, whose text was another one; None if it can be."""
        from gptmini.model.checkpoint import read_header

        run = self._seen.run_of(number)
        if run is None or self._by_bits:
            return None

        # Whoever uses the checkpoint is told of its damage. The loss of the run is known without the checkpoint.
        try:
            text = read_header(run / "checkpoints" / "last.ckpt")["data"]["fingerprint"]
        except (UserError, OSError, KeyError, TypeError):
            return None

        self.study.note(number, text=text)
        for other in self.study.trials:
            if other.state.name == "COMPLETE" and other.user_attrs.get("text") not in (None, text):
                return f"the text has changed since trial {other.number} was trained"
        return None

    def _is_alive(self, active: Active) -> bool:
        """Whether a process trains a trial, or a job that will is in a queue."""
        if active.job is not None and self._launcher.is_alive(active.job):
            return True
        return active.folder.is_locked()

    def _consider_pruning(self, active: Active) -> None:
        """Tell Optuna of the newest validations, and ask a run to end that does worse than the others."""
        if self._settings.pruner is None:
            return
        if active.is_pruned:
            self._ask_to_end([active])
            return
        self.study.report(active.number, self._seen.points_of(active.number))
        if self.study.should_prune(active.number):
            points = self._seen.points_of(active.number)
            self.study.note(active.number, pruned_at=points[-1][0])
            active.is_pruned = True

    def _ask_to_end(self, actives: Any) -> None:
        """Ask runs to save their step and end."""
        now = time.monotonic()
        patience = ASK_AGAIN[self._launcher.settings.cluster]
        for active in actives:
            if active.asked_at is None or now - active.asked_at >= patience:
                active.asked_at = now
                self._launcher.ask_to_end(active.folder.process(), active.job)

    def _say_table(self, rows: list[Row]) -> None:
        """Print the table, and write it as table.csv, unless nothing in it has changed."""
        if rows == self._told:
            return
        self._told = rows
        write_csv(self.folder / "table.csv", rows, self._keys)
        for i, line in enumerate(lines_of(rows, self._keys, by_bits=self._by_bits)):
            _say("sweep" if i == 0 else "", line)

    def _say_stopping(self) -> None:
        if self._launcher.settings.cluster == "slurm":
            jobs = ", ".join(
                str(active.job.job_id) for active in self._active.values() if active.job
            )
            _say(
                "stopped",
                f"the jobs {jobs} go on without the sweep; the same command takes them up again",
            )
        else:
            _say("stopped", "its runs are told to save and end; the same command goes on")

    def _say_left(self) -> None:
        names = ", ".join(str(number) for number in self._active)
        _say("stopped", f"at once: the trials {names} may be training still")


def _say(topic: str, line: str) -> None:
    print(f"{topic:8} {line}", flush=True)
