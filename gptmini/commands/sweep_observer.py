"""What can be seen of the trials of a sweep: their runs, validations and results."""

from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.sweep_table import Row
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.search import Study
    from gptmini.search.study import FrozenTrial

STATES = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "waiting"}


class Observer:
    """Looks at the trials of a sweep.

    Args:
        folder: of the sweep.
        study: which values are tried.
        identity: tells this sweep from others that had the same folder.
        by_bits: whether runs are compared by bits per byte instead of by their loss.
    """

    def __init__(self, folder: Path, study: "Study", identity: str, *, by_bits: bool) -> None:
        self._folder = folder
        self._study = study
        self._identity = identity
        self._by_bits = by_bits

    def job_name(self, number: int) -> str:
        """What names a trial in all its starts."""
        return f"sweep-{self._identity}-trial-{number}"

    def run_of(self, number: int) -> Path | None:
        """The folder of a trial's run; None if the run has not begun."""
        from gptmini.run_folder import find_jobs_run

        found = find_jobs_run(self._folder.parent, self.job_name(number))
        return None if found is None else found[0]

    def points_of(self, number: int) -> list[tuple[int, float]]:
        """The validations of a trial's run so far, as (step, value) points."""
        from gptmini.report.scalar_table import FILE, read_rows

        run = self.run_of(number)
        if run is None or not (run / FILE).is_file():
            return []
        tag = "val/bits_per_byte" if self._by_bits else "val/loss"
        # The sweep only looks at metrics.csv here, so that a damaged one must not end the sweep.
        with suppress(UserError, ValueError, OSError):
            _, rows = read_rows(run / FILE)
            return [(step, float(row[tag])) for step, row in sorted(rows.items()) if tag in row]
        return []

    def rows(self, active: Container[int]) -> list[Row]:
        """The rows of the table: every trial that has begun; active are those that are being trained."""
        begun = [trial for trial in self._study.trials if trial.state.name != "WAITING"]
        return [self._row(trial, is_active=trial.number in active) for trial in begun]

    def _row(self, trial: "FrozenTrial", *, is_active: bool) -> Row:
        """The row of one trial."""
        from gptmini.search import TrialFolder

        number = trial.number
        state = "running" if is_active else STATES[trial.state.name]
        reason = trial.user_attrs.get("reason")
        texts = self._study.texts(number)
        result = TrialFolder(self._folder, number).read_result()
        if result is not None and result.loss is not None:
            # A run that is done may still be about to end.
            return Row(
                number=number,
                state="done" if trial.state.name == "RUNNING" else state,
                texts=texts,
                loss=result.loss,
                bits_per_byte=result.bits_per_byte,
                step=result.step,
                seconds=result.seconds,
                run=self._shown_run(number),
                reason=reason,
            )

        points = self.points_of(number)
        step, value = min(points, key=lambda point: point[1], default=(None, None))
        return Row(
            number=number,
            state=state,
            texts=texts,
            loss=None if self._by_bits else value,
            bits_per_byte=value if self._by_bits else None,
            step=step,
            run=self._shown_run(number),
            reason=reason,
        )

    def _shown_run(self, number: int) -> str | None:
        """The folder of a trial's run as text; None if there is none, or if it is gone."""
        run = self.run_of(number)
        return None if run is None else str(run)
