"""Requeue a Slurm job at its time limit, after its run is saved."""

import os
import shutil
import subprocess

# Slurm announces a job's time limit with one of these signals. A cancelled job receives SIGTERM.
TIME_LIMIT_SIGNALS = ("SIGUSR1", "SIGUSR2")
PATIENCE = 60  # time limit of scontrol, in seconds


def requeue(stopped_by: str | None) -> str:
    """Requeue this job, and return a line about the result.

    stopped_by is the name of the signal that stopped the run, or "the time limit"; None if nothing stopped it.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return "not requeued: this is not a Slurm job"
    if stopped_by not in TIME_LIMIT_SIGNALS:
        return f"job {job} not requeued: stopped by {stopped_by}, not by SIGUSR1 or SIGUSR2"

    program = shutil.which("scontrol")
    if program is None:
        return f"job {job} not requeued: scontrol not found"
    try:
        done = subprocess.run(
            [program, "requeue", job], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"job {job} not requeued: {error}"
    if done.returncode:
        return f"job {job} not requeued: {' '.join(done.stderr.split())}"
    return f"job {job} requeued; it resumes this run if its command has folder="
