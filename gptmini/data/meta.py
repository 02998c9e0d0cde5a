"""meta.json, by which a folder is a prepared folder: found, read, checked and written."""

import json
from pathlib import Path

from gptmini.data.format import CHECKSUMS, COUNTS, FORMAT, OLD_FORMAT, SPLITS, digest_of_json
from gptmini.files import flush_file, naming, new_folder, replacing
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
        meta = json.loads(path.read_text(encoding="utf-8"))
        digest = meta.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise UserError(f"{path} is not the JSON that was written; {remedy(folder)}") from None

    if meta.get("format") not in (OLD_FORMAT, FORMAT):
        raise UserError(
            f"{path} has format {meta.get('format')!r}, this version reads {OLD_FORMAT} and {FORMAT}; {remedy(folder)}"
        )
    if digest_of_json(meta) != digest:
        raise UserError(f"{path} was edited: its digest does not match; {remedy(folder)}")
    if not _is_complete(meta):
        raise UserError(f"{path} lacks what this version wrote; {remedy(folder)}")
    return meta


def _is_complete(meta: dict) -> bool:
    """Whether meta.json holds every field that is read, each of its type."""
    is_old = meta["format"] == OLD_FORMAT
    names = (*COUNTS[:3], "crc32") if is_old else COUNTS
    lists = () if is_old else CHECKSUMS
    try:
        counts = [meta[split][name] for split in SPLITS for name in names]
        for split in SPLITS:
            for name in lists:
                checksums = meta[split][name]
                if type(checksums) is not list:
                    return False
                counts += checksums

        has_counts = all(type(count) is int and 0 <= count < 2**63 for count in counts)
        has_text = all(meta[split]["bytes"] for split in SPLITS)

        has_fingerprint = type(meta["fingerprint"]) is str
        files = meta["source"].get("files", [""])  # of a corpus that is not made of files
        has_files = type(files) is list and files != []
        has_source = has_files and type(meta["source"]["corpus"]) is str
        has_builder = type(meta["builder"]["name"]) is str
        has_dtype = meta["dtype"] in ("uint16", "uint32")
        has_tokenizer = isinstance(meta["tokenizer"], dict)
    except (KeyError, TypeError, AttributeError):
        return False

    has_recipe = has_source and has_builder and has_fingerprint
    is_whole = has_counts and has_text and has_recipe and has_dtype and has_tokenizer
    return is_whole and _names_places(meta)


def _names_places(meta: dict) -> bool:
    """Whether the token files, or the prepared folders, that meta.json names are named as this version does it."""
    lists = [meta.get("sources", [])] + [meta[split].get("files", []) for split in SPLITS]
    if not all(type(entries) is list for entries in lists):
        return False

    sources, *files = lists
    of_sources = {"name": str, "weight": int, "folder": str, "fingerprint": str}
    of_files = {"path": str, "skip": int, "tokens": int, "size": int}
    are_sources = all(_has_types(source, of_sources) and source["weight"] > 0 for source in sources)
    are_files = all(_has_types(file, of_files) for of_split in files for file in of_split)
    if not are_sources or not are_files:
        return False

    n_bytes_of_id = 2 if meta["dtype"] == "uint16" else 4
    for split, of_split in zip(SPLITS, files, strict=True):
        for file in of_split:
            end = file["skip"] + file["tokens"] * n_bytes_of_id
            if min(file["skip"], file["tokens"]) < 0 or end > file["size"]:
                return False
        n_tokens = sum(file["tokens"] for file in of_split)
        if of_split and n_tokens != meta[split]["tokens"]:
            return False
    return True


def _has_types(entry: object, types: dict[str, type]) -> bool:
    """Whether an entry is a mapping with values of these types under these keys."""
    return isinstance(entry, dict) and all(type(entry.get(key)) is types[key] for key in types)


def as_json(meta: dict) -> bytes:
    """What meta.json holds for a folder: all keys, and the digest of them."""
    return json.dumps(meta | {"digest": digest_of_json(meta)}, indent=1).encode("utf-8")


def is_prepared(path: Path) -> bool:
    """Whether a path is that of a prepared folder, and not of a folder with another program's meta.json."""
    try:
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(meta, dict) and {"format", "fingerprint"} <= set(meta)


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
