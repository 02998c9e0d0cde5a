"""A job of Slurm whose time ends: put into the queue again once its run is saved."""

import os
import shutil
import subprocess

# Signals by which a job of Slurm is told that its time ends. A job that its user cancels is sent SIGTERM.
ENDS_OF_TIME = ("SIGUSR1", "SIGUSR2")
PATIENCE = 60  # seconds that scontrol may take


def requeue(stopped_by: str | None) -> str:
    """Put this job into its queue again; return a line for the user on what came of it.

    stopped_by is the name of the signal that has stopped the run, or names the time limit; None for neither.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or stopped_by not in ENDS_OF_TIME:
        kind = "a job of Slurm whose time ends"
        return f"not in a queue again: that is for {kind}, not for {stopped_by}"

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
    return f"job {job} is in the queue again; a command with folder= goes on with this run"
