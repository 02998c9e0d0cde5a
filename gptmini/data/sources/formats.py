"""How a file holds text, as the endings of its name say: a.jsonl.zst holds JSON records, packed by Zstandard."""

from pathlib import Path
from typing import NamedTuple

PACKED = (".gz", ".bz2", ".xz", ".zst")
RECORDS = {  # endings of files of records, each with its kind
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
# What to do first with a file that is not read, by its ending. A model would learn the syntax of JSON, and the bytes of
# the others are no text.
UNPACK = "unpack it first"
CONVERT = "convert it to a .txt file"
REFUSED = (
    dict.fromkeys((".lz4", ".zip", ".7z", ".rar", ".tar", ".tgz"), UNPACK)
    | dict.fromkeys((".arrow", ".pdf", ".doc", ".docx", ".odt", ".epub"), CONVERT)
    | {
        ".json": "write a record on each line of a .jsonl file, or rename it to .txt to train on it as it is"
    }
)


class Format(NamedTuple):
    """How a file holds text."""

    kind: str  # text, jsonl, csv, tsv or parquet
    packing: str  # an ending of PACKED, or empty

    @property
    def is_structured(self) -> bool:
        """Whether the file holds records with fields, or is packed: its bytes are not its text."""
        return self.kind != "text" or self.packing != ""


def format_of(file: Path) -> Format:
    """The format that the endings of a file's name say; text, for any ending that is not known."""
    last = file.suffix.lower()
    return Format(
        kind=RECORDS.get(ending_of(file), "text"),
        packing=last if last in PACKED else "",
    )


def ending_of(file: Path) -> str:
    """The last ending of a file's name in small letters, or of a packed file the one before."""
    ending = file.suffix.lower()
    return Path(file.stem).suffix.lower() if ending in PACKED else ending
