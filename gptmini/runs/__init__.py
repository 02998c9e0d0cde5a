"""A run's folder: made, found and locked, led to by runs/latest, and gone on with."""

from gptmini.runs.find import (
    checkpoints_in,
    every_run,
    find_checkpoint,
    find_run,
    find_runs,
    has_checkpoint,
    named_run,
)
from gptmini.runs.metrics import curves_of, dropping_later_lines, read_lines
from gptmini.runs.resume import adopt, find_training_state, remove_left_overs
from gptmini.runs.run_folder import (
    check_latest,
    check_version,
    is_run,
    is_trained,
    link_latest,
    locked,
    make_run_folder,
    read_config,
    root_of,
    seen_from_here,
    write_config,
)
from gptmini.runs.state import RunState, read_state, write_state

__all__ = [
    "RunState",
    "adopt",
    "check_latest",
    "check_version",
    "checkpoints_in",
    "curves_of",
    "dropping_later_lines",
    "every_run",
    "find_checkpoint",
    "find_run",
    "find_runs",
    "find_training_state",
    "has_checkpoint",
    "is_run",
    "is_trained",
    "link_latest",
    "locked",
    "make_run_folder",
    "named_run",
    "read_config",
    "read_lines",
    "read_state",
    "remove_left_overs",
    "root_of",
    "seen_from_here",
    "write_config",
    "write_state",
]
