"""The folder of a run, runs/<name>/<time>/: made, described by its config.yaml, and locked."""

import datetime
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gptmini import __version__
from gptmini.files import naming, replacing
from gptmini.run_folder.jobs import write_job
from gptmini.run_folder.latest import check_latest, link_latest
from gptmini.user_error import UserError

STAMP = "%Y-%m-%d_%H-%M-%S"  # the time in the name of a run's folder
FIRST_VERSION = "0.1.0"  # the only version of gptmini that did not write its version into a run
# First major and minor version whose runs can be resumed. The configurations of older runs lack keys that every class
# of settings asks for now.
OLDEST_RESUMABLE = (0, 3)
# Seconds that a process waits for the lock of a run, which a table of runs holds for an instant.
PATIENCE = 0.5
# Characters of a label. With the time before them they fit into a line of TensorBoard's list of runs.
LONGEST_LABEL = 60


def new_run_folder(
    root: str | Path,
    name: str,
    config: str,
    label: str = "",
    *,
    job: str | None = None,
    overrides: Sequence[str] = (),
) -> Path:
    """Make a run's folder, write its config.yaml, and let root/latest lead to it.

    Args:
        root: folder of all runs.
        name: the run's name.
        config: the run's configuration in YAML.
        label: what tells the run from others, in any characters; empty for none.
        job: what names the job that may be started again, and then goes on with this run; None for no such job.
        overrides: what was typed, which the job must type again.

    Returns root/name/<time> or root/name/<time>_<label>, with _2 and so on at the end where another run has that name.
    Raises UserError: root/latest exists, and no earlier run has made it.
    """
    check_latest(Path(root) / "latest")
    stamp = datetime.datetime.now().strftime(STAMP)
    if label:
        stamp += f"_{_file_name_of(label)}"
    folder = Path(root) / name / stamp
    attempt = 1
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            attempt += 1
            folder = folder.with_name(f"{stamp}_{attempt}")

    # A job that is killed after this note, and before the configuration is there, has begun no run yet.
    if job is not None:
        write_job(job, folder, list(overrides))
    # The configuration is written first: a run without one cannot be resumed, and latest must not lead to it.
    write_config(config, folder)
    link_latest(root, folder)
    return folder


def _file_name_of(label: str) -> str:
    """A label as part of a file name: at most LONGEST_LABEL English letters, digits and . _ + -, others as hyphens.

    So the name is allowed on every file system, and resume= takes the path without quotes.
    """
    plain = re.sub(r"[^A-Za-z0-9_.+-]+", "-", label)
    return plain[:LONGEST_LABEL].rstrip(".-")  # a last dot is not allowed on Windows


def write_config(config: str, folder: Path) -> None:
    """Write config.yaml into a run folder: the version of gptmini that writes it, then the configuration in YAML."""
    text = f"version: {__version__} # of gptmini, which wrote this run\n{config}"
    with replacing(folder / "config.yaml") as file:
        file.write(text.encode("utf-8"))


def read_config(folder: Path) -> str:
    """Return the text of a run's config.yaml; UserError if it has YAML aliases, a few of which can mean terabytes."""
    import yaml

    path = folder / "config.yaml"
    text = path.read_text(encoding="utf-8")
    has_aliases = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))
    if has_aliases:
        raise UserError(f"{path} must hold plain values, got aliases")
    return text


def check_version(version: object, folder: Path) -> None:
    """Raise UserError unless this version of gptmini can go on with a run that another version wrote.

    Args:
        version: the value of version in the run's config.yaml; None if there is none.
        folder: the run's folder, for the error message.
    """
    written_by = FIRST_VERSION if version is None else version
    numbers = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})\.[0-9]{1,4}", str(written_by))
    if numbers is None:
        raise UserError(
            f"{folder / 'config.yaml'} must name the version of gptmini that wrote it, "
            f"got {version!r}"
        )

    # The last number of a version never decides whether a run can be resumed.
    own_major, own_minor = __version__.split(".")[:2]
    own = (int(own_major), int(own_minor))
    theirs = (int(numbers[1]), int(numbers[2]))
    if not OLDEST_RESUMABLE <= theirs <= own:
        raise UserError(
            f"{folder} was begun by gptmini {written_by}, which {__version__} cannot go on with; "
            f"install gptmini {written_by}, or begin a new run"
        )


def is_trained(folder: Path) -> bool:
    """Whether a process trains a run now."""
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    if not path.exists():
        return False
    try:
        with FileLock(path).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a run of somebody else, who has not allowed to write there
        return False


@contextmanager
def locked(folder: Path, doing: str = "trained") -> Iterator[None]:
    """Lock a run folder during the block, so that one process at a time writes it.

    The lock of a process that was killed is free again.

    Args:
        folder: of a run, or of a sweep.
        doing: what the other process does with it, for the error message.

    Raises UserError: another process has locked the folder; its id is named.
    """
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        process = path.read_text() or "unknown"
        raise UserError(f"{folder} is being {doing} by process {process}; stop it first") from None

    try:
        with naming(path):
            path.write_text(str(os.getpid()))
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
