"""resume=auto: a job that is started again goes on with the run that it has begun."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gptmini.commands.configuration import key_typed, parse_overrides
from gptmini.commands.quoting import override_of
from gptmini.commands.stored import AUTO, RESUMABLE
from gptmini.launch import Launch, this_launch
from gptmini.user_error import UserError

# Signals by which a job of SLURM is told that its time ends. A job that its user cancels is sent SIGTERM.
ENDS_OF_TIME = ("SIGUSR1", "SIGUSR2")
PATIENCE = 60  # seconds that scontrol may take


def asks_for_auto(overrides: Sequence[str]) -> bool:
    """Whether overrides ask for the run that this job has begun, if there is one."""
    for override in parse_overrides(overrides):
        if override.key_or_group == "resume" and not override.is_delete():
            return override.value() == AUTO
    return False


def settle_auto(overrides: Sequence[str], runs: Path) -> list[str]:
    """Replace resume=auto by the run that this job has begun, and leave out what was typed for the run before.

    Args:
        overrides: KEY=VALUE each, with resume=auto.
        runs: the folder of the runs of the name that the overrides lead to.

    Returns the overrides as they are if the job has begun no run yet.
    Raises UserError: no job is known, or it has begun its run with other overrides, which would change the run's past.
    """
    from gptmini.run_folder import find_jobs_run

    found = find_jobs_run(runs, job_of_auto(this_launch()))
    if found is None:
        return list(overrides)

    folder, before = found
    settled = [override_of("resume", str(folder))]
    typed = [override for override in overrides if key_typed(override) != "resume"]
    for override in typed:
        if override in before:
            continue
        if key_typed(override) not in RESUMABLE:
            raise UserError(
                f"this job has begun {folder} without {override}, which would change its past; "
                "leave resume=auto out to begin a new run"
            )
        settled.append(override)

    # A key that a resumed run takes may be left out: the run keeps its value.
    keys = [key_typed(override) for override in typed]
    for override in before:
        if key_typed(override) not in (*keys, *RESUMABLE):
            raise UserError(
                f"this job has begun {folder} with {override}, which is missing now; "
                "leave resume=auto out to begin a new run"
            )
    return settled


def job_of_auto(launch: Launch) -> str:
    """What names this job in all its starts; UserError if nothing does."""
    if launch.job is None:
        raise UserError(
            "resume=auto needs a job that is started again under its name: a job of SLURM, or torchrun with --rdzv-id; "
            "elsewhere resume=runs/latest goes on"
        )
    return launch.job


def requeue(launch: Launch) -> str:
    """Put this job of SLURM into its queue again; return a line for the user on what came of it."""
    job = (launch.job or "").removeprefix("slurm-")
    program = shutil.which("scontrol")
    if program is None:
        return f"job {job} is not in the queue again: there is no scontrol here"
    try:
        done = subprocess.run(
            [program, "requeue", job], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"job {job} is not in the queue again: {error}"
    if done.returncode:
        return f"job {job} is not in the queue again: {' '.join(done.stderr.split())}"
    return f"job {job} is in the queue again, and goes on with this run"


def may_requeue(launch: Launch, folder: Path, reason: str | None) -> bool:
    """Whether a run that stopped asks SLURM for more time: its job has begun it by resume=auto, and its time ends.

    Args:
        launch: which process this is.
        folder: the run's folder.
        reason: why the run stopped, perhaps the name of a signal.
    """
    from gptmini.run_folder import find_jobs_run

    in_slurm = launch.job is not None and launch.job.startswith("slurm-")
    if launch.job is None or not in_slurm or launch.is_further or reason not in ENDS_OF_TIME:
        return False
    found = find_jobs_run(folder.parent, launch.job)
    return found is not None and found[0].samefile(folder)
