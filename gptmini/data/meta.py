"""meta.json of a prepared folder: found, read, checked and written; see data/README.md."""

import hashlib
import json
from pathlib import Path

from gptmini.files import replacing
from gptmini.untrusted import read_json
from gptmini.user_error import UserError

FORMAT = 3  # version of the files; part of the fingerprint, so that other rules make other folders
SPLITS = ("train", "val")  # training text, and text that is held out for validation


def find_prepared(folder: Path, near: Path) -> Path:
    """The place of a prepared folder that a run names relative to where the run was started.

    Args:
        folder: the folder as the run names it.
        near: a file of the run. The run was started in a folder above the file, or where the user stands now.

    Returns the first place that holds a prepared folder: seen from the working directory, or else from the folders
    above the file, the nearest first. Where there is none, returns folder as it is.
    """
    places = [Path(), *near.absolute().parents]
    for place in places:
        if (place / folder / "meta.json").is_file():
            return place / folder
    return folder


def read_meta(folder: Path) -> dict:
    """What meta.json of a prepared folder says; UserError unless it is as this version wrote it."""
    path = folder / "meta.json"
    if not path.is_file():
        problem = "has no meta.json" if folder.is_dir() else "does not exist"
        raise UserError(
            f"{folder} must be a prepared folder, and it {problem}; prepare its text again with gptmini prepare or by "
            "resuming its run, or name another folder"
        )

    try:
        meta = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {remedy(folder)}") from None

    digest = meta.pop("digest", None)
    if meta.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {meta.get('format')!r}, and this version reads {FORMAT} alone, so that texts prepared "
            f"by gptmini 0.2 are prepared anew; {remedy(folder)}"
        )
    if digest_of_json(meta) != digest:
        raise UserError(f"{path} was edited: its digest does not match; {remedy(folder)}")
    return meta


def write_meta(folder: Path, meta: dict) -> None:
    """Write meta.json, whole or not at all, with the digest of all its keys; the folder is made if it is not there."""
    contents = meta | {"digest": digest_of_json(meta)}
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "meta.json") as file:
        file.write(json.dumps(contents, indent=1).encode("utf-8"))


def digest_of_json(value: object) -> str:
    """SHA-256 of a value in plain JSON types, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def remedy(folder: Path) -> str:
    """What to do about a prepared folder that cannot be used."""
    return f"delete {folder} to prepare it again"
