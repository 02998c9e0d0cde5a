"""Delete the folder of a run, and find the runs that started from a run."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gptmini.files import temporary_beside
from gptmini.runs.find import NAME_WITH_TIME, every_run
from gptmini.runs.run_folder import (
    LINKED,
    is_run,
    link_latest,
    read_config,
    relative_to_cwd,
    root_of,
)
from gptmini.user_error import UserError

# Every run has at least one of these items. A folder without them may be a project with a copy of a run's config.yaml.
ITEMS = ("checkpoints", "state", "train.log")


def can_delete(folder: Path) -> bool:
    """Whether a folder is certainly the folder of a run."""
    return is_run(folder) and any((folder / item).exists() for item in ITEMS)


def delete_run(folder: Path, runs_dir: str) -> Path | None:
    """Delete the folder of a run, and the folder runs/NAME if it becomes empty. The caller has locked the run.

    The folder gets a temporary name before its files are deleted. Therefore no command finds a part of a run, even if
    the process is killed. If `latest` then points to a missing run, make it point to the newest run. Without other
    runs, delete `latest`.

    Args:
        folder: the folder of the run.
        runs_dir: the folder of all runs, if it contains the run.

    Returns the run that `latest` points to now, if it has changed.
    Raises UserError, which names the temporary folder, if files remain.
    """
    folder = folder.absolute()  # folder may be the working directory, which is renamed
    root = root_of(folder, runs_dir)
    hidden = temporary_beside(folder)
    folder.rename(hidden)
    try:
        latest = None if root is None else _repair_latest(root)
    finally:
        _delete_files(folder, hidden)

    # The name shows that the user did not choose the folder. Then gptmini has made the folder runs/NAME, too.
    if NAME_WITH_TIME.fullmatch(folder.name):
        with suppress(OSError):  # the folder contains other runs
            folder.parent.rmdir()
    return latest


def _delete_files(folder: Path, hidden: Path) -> None:
    """Delete the folder of a run, which was renamed from `folder` to `hidden`."""
    shown = relative_to_cwd(hidden)
    try:
        shutil.rmtree(hidden)
    except (OSError, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        raise UserError(
            f"{relative_to_cwd(folder)} is no longer a run, but its files remain; delete {shown} ({reason})"
        ) from None


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
