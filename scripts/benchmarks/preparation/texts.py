"""Write text of any size from the files of Python and the system."""

import argparse
import json
import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Python's folders, and other folders with text on most systems.
ROOTS = [Path(sysconfig.get_path("stdlib")), Path("/usr/share"), Path("/usr/lib"), Path(sys.prefix)]
SMALLEST = 200  # bytes; smaller files are left out
LARGEST = 300_000  # bytes; larger files are left out
SEPARATOR = "<|document|>"


def text_of(arguments: argparse.Namespace, megabytes: int, ending: str = "txt") -> Path:
    """Return a text file with this number of megabytes, txt or jsonl; write it if it does not exist."""
    path = arguments.folder / f"{megabytes}.{ending}"
    if path.exists():
        return path
    with path.open("w", encoding="utf-8") as file:
        n_bytes = 0
        for text in endless_documents():
            file.write(json.dumps({"text": text}) + "\n" if ending == "jsonl" else text + SEPARATOR)
            n_bytes += len(text.encode())
            if n_bytes >= megabytes * 10**6:
                return path
    return path


def endless_documents() -> Iterator[str]:
    """Yield the text files of this machine in a fixed random order, without end."""
    files = []
    for root in ROOTS:
        for path in sorted(root.rglob("*")):
            if (
                path.is_file()
                and not path.is_symlink()
                and SMALLEST < path.stat().st_size < LARGEST
            ):
                files.append(path)
    random.Random(0).shuffle(files)
    while True:
        for path in files:
            data = path.read_bytes()
            if b"\0" in data:
                continue
            try:
                yield data.decode()
            except UnicodeDecodeError:
                continue
