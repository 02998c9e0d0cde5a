"""Delete the folders of runs, and find the runs that started from a run."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gptmini.runs.find import NAME_WITH_TIME, every_run
from gptmini.runs.run_folder import LINKED, link_latest, read_config, root_of
from gptmini.user_error import UserError


def delete_runs(folders: Sequence[Path], runs_dir: str) -> list[Path]:
    """Delete the folders of runs, and the folders runs/NAME that are empty then. The caller has locked the runs.

    If `latest` points to a missing run afterwards, make it point to the newest run. Without other runs, delete
    `latest`.

    Args:
        folders: the folders of the runs.
        runs_dir: the folder of all runs, if it contains the runs.

    Returns the runs that `latest` points to now, if it has changed.
    """
    roots = dict.fromkeys(root_of(folder, runs_dir) for folder in folders)
    for folder in folders:
        shutil.rmtree(folder)
        # The name shows that the user did not choose the folder. Then gptmini has made the folder runs/NAME, too.
        if NAME_WITH_TIME.fullmatch(folder.name):
            with suppress(OSError):  # the folder contains other runs
                folder.parent.rmdir()

    latest = [_repair_latest(root) for root in roots if root is not None]
    return [run for run in latest if run is not None]


def _repair_latest(root: Path) -> Path | None:
    """If root/latest points to a missing run, make it point to the newest run, and return this run."""
    latest = root / "latest"
    config = latest / "config.yaml"
    if not config.is_symlink() or config.exists():
        return None

    runs = every_run(root)
    if runs:
        link_latest(root, runs[-1])
        return runs[-1]
    for item in LINKED:
        (latest / item).unlink(missing_ok=True)
    with suppress(OSError):  # the folder contains files of the user
        latest.rmdir()
    return None


def runs_started_from(folder: Path, runs: Sequence[Path]) -> list[Path]:
    """Return those of the runs that started with the weights of the run in `folder` (init_from)."""
    started = []
    for run in runs:
        with suppress(UserError):  # the configuration of a damaged run is unknown
            origin = read_config(run)[0].get("init_from")
            if isinstance(origin, str) and Path(origin).resolve().is_relative_to(folder.resolve()):
                started.append(run)
    return started
