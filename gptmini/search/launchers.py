"""The processes that train the runs of a sweep: those of this machine, or jobs of SLURM, started by submitit."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError, number, text, whole

if TYPE_CHECKING:
    from submitit import Job

CLUSTERS = ("local", "slurm")
# Minutes of a year, after which submitit ends a local job; a run has its own limit, trainer.max_time.
YEAR = 60 * 24 * 365
# States of a job that SLURM may have forgotten, and the seconds in such a state after which the job is taken for ended.
DOUBTFUL = ("UNKNOWN", "PREEMPTED")
GRACE = 300
# How often a job of SLURM may come to the end of its time and go on in another one.
MOST_TIMEOUTS = 1000
PATIENCE = 60  # seconds that scancel may take


@dataclass(frozen=True, kw_only=True)
class LauncherSettings:
    """Where the runs of a sweep are trained, from the group launcher of the configuration."""

    cluster: str  # local or slurm
    jobs: int  # runs at once
    gpus: int  # of each run
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    timeout_min: int | None = None  # minutes of a job of SLURM
    cpus: int | None = None  # processors of each run
    memory_gb: float | None = None  # of each run
    setup: Sequence[str] = ()  # lines of shell that precede each run
    options: Mapping[str, Any] | None = None  # further options of sbatch

    def __post_init__(self) -> None:
        """Raise UserError for a value of the wrong type or out of range."""
        if self.cluster not in CLUSTERS:
            raise UserError(
                f"launcher.cluster must be one of {', '.join(CLUSTERS)}, got {self.cluster!r}"
            )

        whole("launcher.jobs", self.jobs)
        whole("launcher.gpus", self.gpus, least=0)
        for name in ("timeout_min", "cpus"):
            whole(f"launcher.{name}", getattr(self, name), null="what the cluster gives")
        number("launcher.memory_gb", self.memory_gb, above=0, null="what the cluster gives")

        for name in ("partition", "account", "qos"):
            if getattr(self, name) is not None:
                text(f"launcher.{name}", getattr(self, name))
        is_list = isinstance(self.setup, list | tuple)
        if not is_list or not all(type(line) is str for line in self.setup):
            raise UserError(f"launcher.setup must be a list of lines, got {self.setup!r}")
        if self.options is not None and not isinstance(self.options, dict):
            raise UserError(f"launcher.options must hold options by name, got {self.options!r}")


class Launcher:
    """Starts the runs of a sweep.

    Args:
        settings: where runs are trained.
        folder: for what submitit writes: each job's call and its output.
        gpus: the GPUs of this machine, as CUDA_VISIBLE_DEVICES names them; empty where runs use none.

    Raises UserError: there are fewer GPUs than the runs need, or no SLURM.
    """

    def __init__(self, settings: LauncherSettings, folder: Path, gpus: Sequence[str] = ()) -> None:
        self.settings = settings
        self._free = list(gpus)
        self._has_gpus = bool(gpus) and settings.gpus > 0 and settings.cluster == "local"
        wanted = settings.jobs * settings.gpus
        if self._has_gpus and wanted > len(gpus):
            raise UserError(
                f"{settings.jobs} runs at once need {wanted} GPUs, and {len(gpus)} are here; lower --jobs, or let "
                "runs share with launcher.gpus=0"
            )
        if settings.cluster == "slurm" and shutil.which("srun") is None:
            raise UserError("launcher=slurm needs SLURM, and there is no srun here")
        self._folder = folder
        self._doubtful: dict[str, float] = {}  # by job, since when SLURM has not known it

    def has_free_gpus(self) -> bool:
        """Whether another run can have GPUs of its own, or needs none; runs of an earlier start may have them still."""
        return not self._has_gpus or len(self._free) >= self.settings.gpus

    def take_gpus(self) -> str | None:
        """Take the GPUs of another run, as a value of CUDA_VISIBLE_DEVICES; None where there are none to share."""
        if not self._has_gpus:
            return None
        taken = [self._free.pop(0) for _ in range(self.settings.gpus)]
        return ",".join(taken)

    def keep_gpus(self, taken: str | None) -> str | None:
        """Take those free GPUs on which a run of an earlier start still trains; return them, None if there are none."""
        if not self._has_gpus or taken is None:
            return None
        kept = [gpu for gpu in self._free if gpu in taken.split(",")]
        self._free = [gpu for gpu in self._free if gpu not in kept]
        return ",".join(kept) or None

    def give_back(self, taken: str | None) -> None:
        """Give back the GPUs of a run that has ended."""
        if self._has_gpus and taken is not None:
            self._free += taken.split(",")

    def submit(self, job: Callable[[], None]) -> "Job":
        """Start a job, which must be a callable that another process can import.

        Raises UserError: SLURM does not take the job.
        """
        from submitit.core.utils import FailedJobError

        executor = self._executor()
        # A Ctrl-C is for the sweep, which tells its runs to end. submitit would kill a run after a second.
        try:
            with _turning_off_interrupts():
                return executor.submit(job)
        except (FailedJobError, subprocess.CalledProcessError) as error:
            raise UserError(
                f"SLURM does not take the job: {' '.join(str(error).split())}"
            ) from None

    def job_of(self, job_id: str | None) -> "Job | None":
        """The job of an earlier start of the sweep, whose state the cluster knows; None on this machine."""
        if self.settings.cluster == "local" or job_id is None:
            return None
        from submitit import SlurmJob

        return SlurmJob(self._folder, job_id)

    def is_alive(self, job: "Job") -> bool:
        """Whether a job is in a queue or runs, as far as the cluster knows.

        SLURM forgets jobs, and submitit takes a job that it knows nothing of for one that still runs.
        """
        if job.done():
            return False
        if self.settings.cluster == "local" or job.state not in DOUBTFUL:
            self._doubtful.pop(job.job_id, None)
            return True
        since = self._doubtful.setdefault(job.job_id, time.monotonic())
        return time.monotonic() - since < GRACE

    def ask_to_end(self, process: int | None, job: "Job | None") -> None:
        """Send SIGTERM to a run, which saves its step and ends; one that has ended already is left alone.

        Args:
            process: of the run, if it is one of this machine.
            job: of the run.
        """
        if self.settings.cluster == "local":
            if process is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGTERM)
            return
        scancel = shutil.which("scancel")
        if scancel is not None and job is not None:
            command = [scancel, "--signal=TERM", str(job.job_id)]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)

    def _executor(self) -> Any:
        """submitit's executor with the settings of the sweep."""
        import submitit

        settings = self.settings
        if settings.cluster == "local":
            executor = submitit.AutoExecutor(self._folder, cluster="local")
            executor.update_parameters(timeout_min=YEAR, stderr_to_stdout=True)
            return executor

        executor = submitit.AutoExecutor(
            self._folder, cluster="slurm", slurm_max_num_timeout=MOST_TIMEOUTS
        )
        given = {
            "gpus_per_node": settings.gpus or None,
            "timeout_min": settings.timeout_min,
            "cpus_per_task": settings.cpus,
            "mem_gb": settings.memory_gb,
            "slurm_partition": settings.partition,
            "slurm_account": settings.account,
            "slurm_qos": settings.qos,
            "slurm_setup": list(settings.setup) or None,
            "slurm_additional_parameters": dict(settings.options or {}) or None,
        }
        executor.update_parameters(
            nodes=1,
            tasks_per_node=1,
            stderr_to_stdout=True,
            **{name: value for name, value in given.items() if value is not None},
        )
        return executor


def again(job: Callable[[], None]) -> Any:
    """What a job's method checkpoint returns so that submitit puts the same call into the queue of SLURM again."""
    from submitit.helpers import DelayedSubmission

    return DelayedSubmission(job)


@contextmanager
def _turning_off_interrupts() -> Iterator[None]:
    """Let processes that the block starts take no notice of a Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
