"""Which run a job has begun: what lets the job, started again, go on with the run instead of beginning another."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from gptmini.files import replacing
from gptmini.user_error import UserError

FOLDER = ".jobs"  # beside the runs of a name


@dataclass(frozen=True)
class JobsRun:
    """The run that a job has begun."""

    job: str  # what names the job in all its starts
    run: str  # name of the run's folder
    overrides: list[str]  # what was typed when the run began, KEY=VALUE each, without resume=


def write_job(job: str, folder: Path, overrides: list[str]) -> None:
    """Write down that a job has begun the run of a folder; OSError if that cannot be written."""
    path = _path(folder.parent, job)
    path.parent.mkdir(exist_ok=True)
    noted = JobsRun(job=job, run=folder.name, overrides=overrides)
    with replacing(path) as file:
        file.write(json.dumps(asdict(noted)).encode())


def find_jobs_run(runs: Path, job: str) -> tuple[Path, list[str]] | None:
    """Find the run that a job has begun, and what was typed for it.

    Args:
        runs: the folder of the runs of a name.
        job: what names the job.

    Returns the run's folder and the overrides; None if the job has begun no run, or was killed before the run had its
    configuration.
    Raises UserError: the note on the job is damaged, or that of another job.
    """
    path = _path(runs, job)
    try:
        noted = JobsRun(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise UserError(f"{path} must say which run the job {job} has begun; remove it") from None

    is_plain = type(noted.run) is str and Path(noted.run).name == noted.run
    are_texts = type(noted.overrides) is list and all(type(text) is str for text in noted.overrides)
    if noted.job != job or not is_plain or not are_texts:
        raise UserError(f"{path} must be of the job {job}, got {noted.job!r}; remove it")
    folder = runs / noted.run
    if not (folder / "config.yaml").is_file():
        return None
    return folder, noted.overrides


def _path(runs: Path, job: str) -> Path:
    """The file in which a job is noted. Characters that a file system might not allow are hyphens in its name."""
    plain = re.sub(r"[^A-Za-z0-9_.+-]+", "-", job)
    return runs / FOLDER / f"{plain}.json"
