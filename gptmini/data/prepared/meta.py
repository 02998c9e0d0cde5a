"""Find, read, check and write the file meta.json of a prepared folder. data/README.md describes this file."""

import hashlib
import json
from pathlib import Path

from gptmini.system.errors import UserError
from gptmini.system.files import replacing
from gptmini.system.untrusted import read_json

FORMAT = 3  # version of prepared folders; part of the fingerprint, so that a new format gets a new folder
SPLITS = ("train", "val")  # training text and held-out text


def find_prepared(folder: Path, near: Path) -> Path:
    """Find the prepared folder of a run. The run stores its path relative to the directory where it was started.

    Look in the working directory, and then in the parent folders of `near`, a file of the run, beginning with the
    nearest. If no folder is found, return `folder` unchanged.
    """
    for place in [Path(), *near.absolute().parents]:
        if (place / folder / "meta.json").is_file():
            return place / folder
    return folder


def folder_ending_with(root: Path, name: str, ending: str) -> Path:
    """Return the prepared folder in root whose name ends with the tokenizer and the fingerprint.

    The folder may begin with another name than `name`, because the text was renamed, or because an earlier version of
    gptmini prepared it. If no such folder exists, return a new folder.
    """
    folder = root / f"{name}-{ending}"
    others = [] if folder.exists() else sorted(root.glob(f"[!.]*-{ending}"))
    return next(iter(others), folder)


def read_meta(folder: Path) -> dict:
    """Read the file meta.json of a prepared folder.

    Raises UserError if the file is missing, was edited, or has a different format.
    """
    path = folder / "meta.json"
    if not path.is_file():
        problem = "is not a prepared folder (no meta.json)" if folder.is_dir() else "does not exist"
        raise UserError(
            f"{folder} {problem}; run gptmini prepare, resume the run of this folder, or give a different folder"
        )

    try:
        meta = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {remedy(folder)}") from None

    digest = meta.pop("digest", None)
    if meta.get("format") != FORMAT:
        raise UserError(
            f"{path} must have format {FORMAT}, got {meta.get('format')!r}; {remedy(folder)}"
        )
    if digest_of_json(meta) != digest:
        raise UserError(
            f"{path} was edited: its digest does not match its content; {remedy(folder)}"
        )
    return meta


def write_meta(folder: Path, meta: dict) -> None:
    """Write the file meta.json atomically, and add a digest of the content. Create the folder if it is missing."""
    contents = meta | {"digest": digest_of_json(meta)}
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "meta.json") as file:
        file.write(json.dumps(contents, indent=1).encode("utf-8"))


def digest_of_json(value: object) -> str:
    """Return the SHA-256 digest of a value in hexadecimal. The value consists of plain JSON types."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def remedy(folder: Path) -> str:
    """Return the text that explains how to fix a prepared folder that cannot be used."""
    return f"delete {folder} to prepare it again"
