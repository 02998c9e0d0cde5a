"""Requeue a Slurm job at its time limit, after the run of the job has been saved."""

import os
import subprocess

# Slurm announces the time limit of a job with one of these signals. A job that is cancelled receives SIGTERM instead.
TIME_LIMIT_SIGNALS = ("SIGUSR1", "SIGUSR2")
PATIENCE = 60  # maximum number of seconds to wait for the command scontrol


def requeue(stopped_by: str | None) -> str:
    """Requeue this job if a signal of the time limit stopped the run, and return a line about the result."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return "not requeued: this is not a Slurm job"
    if stopped_by not in TIME_LIMIT_SIGNALS:
        return f"job {job} not requeued: stopped by {stopped_by}, not by SIGUSR1 or SIGUSR2"

    try:
        result = subprocess.run(
            ["scontrol", "requeue", job],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"job {job} not requeued: {error}"
    if result.returncode:
        return f"job {job} not requeued: {' '.join(result.stderr.split())}"
    return f"job {job} requeued; it resumes this run if its command has folder="
