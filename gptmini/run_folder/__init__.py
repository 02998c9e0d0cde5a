"""A run's folder, runs/<name>/<time>/: made, found and locked, led to by runs/latest, and gone on with."""

from gptmini.run_folder.finding import every_run, find_checkpoint, find_run, find_runs, named_run
from gptmini.run_folder.folder import (
    check_version,
    is_trained,
    locked,
    new_run_folder,
    read_config,
    write_config,
)
from gptmini.run_folder.jobs import find_jobs_run
from gptmini.run_folder.latest import check_run_name, link_latest, seen_from_here
from gptmini.run_folder.resuming import adopt, find_training_state, remove_left_overs

__all__ = [
    "adopt",
    "check_run_name",
    "check_version",
    "every_run",
    "find_checkpoint",
    "find_jobs_run",
    "find_run",
    "find_runs",
    "find_training_state",
    "is_trained",
    "link_latest",
    "locked",
    "named_run",
    "new_run_folder",
    "read_config",
    "remove_left_overs",
    "seen_from_here",
    "write_config",
]
