"""Which run, and which of its checkpoints, a path stands for that a user names."""

from pathlib import Path

from gptmini.checks import UserError
from gptmini.run_folder.latest import seen_from_here


def find_run(path: str | Path) -> Path:
    """Return the folder of the run that a path belongs to, relative to the working directory where it lies inside.

    Args:
        path: a run folder, root/latest, or a .ckpt file of a run.

    Raises UserError: the path does not exist, or belongs to no run.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"{path} does not exist; give a run folder (runs/latest) or a .ckpt file in one"
        )

    # The config.yaml of a folder is resolved, because that of root/latest is a link into the run's folder.
    folder = (path / "config.yaml").resolve().parent
    if path.is_file():
        folder = path.resolve().parent.parent

    if not (folder / "config.yaml").is_file():
        runs = sorted(path.glob("*/config.yaml")) if path.is_dir() else []
        hint = "a run keeps it beside its checkpoints folder"
        if runs:
            hint = f"did you mean {runs[-1].parent}?"
        raise UserError(f"{path} belongs to no run: {folder / 'config.yaml'} is missing; {hint}")

    return seen_from_here(folder)
