"""meta.json, by which a folder is a prepared folder: found, read, checked and written."""

import json
from pathlib import Path

from gptmini.data.format import FORMAT, OLD_FORMAT, digest_of_json
from gptmini.files import flush_file, naming, new_folder, replacing
from gptmini.untrusted import read_json
from gptmini.user_error import UserError


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
    """What meta.json says; UserError unless it is as this version, or the one of format 1, wrote it."""
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
    if meta.get("format") not in (OLD_FORMAT, FORMAT):
        raise UserError(
            f"{path} has format {meta.get('format')!r}, this version reads {OLD_FORMAT} and {FORMAT}; {remedy(folder)}"
        )
    if digest_of_json(meta) != digest:
        raise UserError(f"{path} was edited: its digest does not match; {remedy(folder)}")
    return meta


def as_json(meta: dict) -> bytes:
    """What meta.json holds for a folder: all keys, and the digest of them."""
    return json.dumps(meta | {"digest": digest_of_json(meta)}, indent=1).encode("utf-8")


def is_prepared(path: Path) -> bool:
    """Whether a path is that of a prepared folder, and not of a folder with another program's meta.json."""
    try:
        meta = read_json(path / "meta.json")
    except (OSError, UserError):
        return False
    return {"format", "fingerprint"} <= set(meta)


def put_meta(folder: Path, meta: dict) -> None:
    """Write meta.json into a folder of nothing else, which is made if it is not there."""
    if folder.is_dir():
        with replacing(folder / "meta.json") as file:
            file.write(as_json(meta))
        return
    with new_folder(folder) as temporary:
        write_meta(temporary, meta, place=folder)


def write_meta(folder: Path, meta: dict, *, place: Path) -> None:
    """Write meta.json into a new folder, flushed to disk; an error of writing names place."""
    with naming(place), (folder / "meta.json").open("wb") as file:
        file.write(as_json(meta))
        flush_file(file)


def remedy(folder: Path) -> str:
    """What to do about a prepared folder that cannot be used."""
    return f"delete {folder} to prepare it again"
