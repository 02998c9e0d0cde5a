"""Find the run and the checkpoint that a path from the command line means. Every command uses these functions."""

from pathlib import Path

from gptmini.runs.run_folder import identity_of, is_run, is_training, relative_to_cwd
from gptmini.system.errors import UserError, similar
from gptmini.system.files import is_temporary

# The folder of all runs, unless runs_dir= names another folder.
RUNS = Path("runs")

# The names of a run's checkpoint files, without .ckpt. The folder 'checkpoints' may also contain renamed checkpoints
# (set-aside-...) and a user's own files. gptmini reads these other files only if a command names them.
CHECKPOINTS = ("last", "previous", "best")


def named_run(path: str | Path, *, saved: bool = False) -> Path:
    """Return the run folder or file that a path stands for.

    A folder of runs, such as runs/NAME, stands for its latest run, with `saved` for the latest that has a checkpoint.
    Every other path stands for itself.

    Raises UserError if the path is empty (such as an unset shell variable), does not exist, or is the folder of all
    runs.
    """
    if not str(path):
        raise UserError("the name of a run must not be empty; use runs/latest for the latest run")
    path = Path(path).expanduser()
    if not path.exists():
        run = similar_run(path)
        fix = "give a run folder such as runs/latest, or a run's .ckpt file"
        if RUNS in path.parents and not RUNS.exists():
            fix = f"{Path.cwd()} has no folder {RUNS}; change to the folder that contains {RUNS}"
        raise UserError(f"{path} does not exist; {f'did you mean {run}?' if run else fix}")
    has_parts_of_run = (path / "config.yaml").exists() or (path / "checkpoints").is_dir()
    if path.is_file() or has_parts_of_run:
        return path

    is_of_all = (path / "latest").exists()
    runs = _runs(path, "*/config.yaml")
    if runs and not is_of_all:
        usable = [run for run in runs if has_checkpoint(run)] if saved else []
        return (usable or runs)[-1]

    runs = every_run(path)
    if runs:
        raise UserError(
            f"{path} is the folder of all runs; give {path / 'latest'} or the folder of one run, such as {runs[-1]}"
        )
    return path


def similar_run(path: str | Path) -> Path | None:
    """Return the run, or the folder of runs, with the same or a similar name as a path that does not exist."""
    path = Path(path)
    runs = [*RUNS.glob("*"), *RUNS.glob("*/*")]
    same = next((run for run in runs if run.name == path.name), None)
    close = similar(str(path), map(str, runs))
    return same or (Path(close) if close else None)


def find_run(path: str | Path) -> Path:
    """Return the folder of the run that a path belongs to, as relative_to_cwd returns it.

    The path is a run folder, a folder of runs, root/latest, or a .ckpt file of a run. Raises UserError for another
    path.
    """
    path = named_run(path)

    # Resolve config.yaml: in root/latest it is a link into the run's folder.
    folder = (path / "config.yaml").resolve().parent
    if path.is_file():
        folder = path.resolve().parent.parent
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{path} does not belong to a run: {folder / 'config.yaml'} is missing")
    return relative_to_cwd(folder)


def find_runs(path: str | Path) -> list[Path]:
    """Return all runs in a folder of runs, oldest first. For another path, return only find_run(path)."""
    named = named_run(path)  # refuses an empty name, which Path would turn into the working folder
    folder = Path(path).expanduser()
    if named == folder:
        return [find_run(folder)]
    return [relative_to_cwd(run) for run in _runs(folder, "*/config.yaml")]


def every_run(folder: str | Path) -> list[Path]:
    """Return every run in a folder of all runs, of runs with one name, or of one run, oldest first."""
    folder = Path(folder)
    return _runs(folder, "config.yaml") or _runs(folder, "*/config.yaml", "*/*/config.yaml")


def find_checkpoint(path: str | Path) -> Path:
    """Return the checkpoint that a path stands for: a .ckpt file itself, or a run's best.ckpt or latest checkpoint.

    A folder of runs stands for its latest run with a checkpoint. Raises UserError if the path does not belong to a run,
    or if the run has no checkpoint.
    """
    path = named_run(path, saved=True)
    if path.is_file():
        return path
    checkpoints = checkpoints_in(path)
    best = path / "checkpoints" / "best.ckpt"
    if best in checkpoints:
        return best
    if checkpoints:
        return checkpoints[0]

    # root/latest contains only links into the folder of a run.
    folder = (path / "config.yaml").resolve().parent
    if is_run(folder) and is_training(folder):
        raise UserError(
            f"{path} is training and has no checkpoint yet; it saves one after its first validation, unless "
            "callbacks.checkpoints is off"
        )
    raise UserError(
        f"{path} has no checkpoints/best.ckpt or last.ckpt; train the run, give a .ckpt file, or use gptmini import"
    )


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoint files of a run, last.ckpt first. Damaged checkpoint files are included."""
    files = [folder / "checkpoints" / f"{name}.ckpt" for name in CHECKPOINTS]
    return [file for file in files if file.is_file()]


def has_checkpoint(folder: Path) -> bool:
    """Whether a run has a checkpoint to resume from."""
    return bool(checkpoints_in(folder))


def _runs(folder: Path, *patterns: str) -> list[Path]:
    """Return the folders of runs whose config.yaml matches a pattern, oldest first, without links in root/latest."""
    configs = [path for pattern in patterns for path in folder.glob(pattern)]
    files = [path for path in configs if path.is_file() and not path.is_symlink()]
    runs = [path.parent for path in files if not is_temporary(path.parent)]
    # Modification times change when a run is resumed or copied.
    return sorted(runs, key=lambda run: (identity_of(run).begun, run.name))
