"""Runs: find them, create and lock their folders, and resume them."""

from gptmini.runs.find import (
    RUNS,
    every_run,
    find_checkpoint,
    find_run,
    find_runs,
    has_checkpoint,
    named_run,
    similar_run,
)
from gptmini.runs.metrics import curves_of, read_lines
from gptmini.runs.resume import find_training_state
from gptmini.runs.run import Run, open_run
from gptmini.runs.run_folder import (
    is_run,
    is_training,
    locked,
    read_config,
    relative_to_cwd,
    root_of,
)
from gptmini.runs.status import RunStatus, read_status, write_status

__all__ = [
    "RUNS",
    "Run",
    "RunStatus",
    "curves_of",
    "every_run",
    "find_checkpoint",
    "find_run",
    "find_runs",
    "find_training_state",
    "has_checkpoint",
    "is_run",
    "is_training",
    "locked",
    "named_run",
    "open_run",
    "read_config",
    "read_lines",
    "read_status",
    "relative_to_cwd",
    "root_of",
    "similar_run",
    "write_status",
]
