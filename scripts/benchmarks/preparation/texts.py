"""Texts of any size, made of what Python and the system ship."""

import argparse
import json
import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Folders that hold text on most systems, besides Python's own.
ROOTS = [Path(sysconfig.get_path("stdlib")), Path("/usr/share"), Path("/usr/lib"), Path(sys.prefix)]
SMALLEST = 200  # bytes of a file that is taken
LARGEST = 300_000
SEPARATOR = "<|document|>"


def text_of(arguments: argparse.Namespace, megabytes: int, ending: str = "txt") -> Path:
    """The file with a text of so many megabytes, which is made if it is not there: txt or jsonl."""
    path = arguments.folder / f"{megabytes}.{ending}"
    if path.exists():
        return path
    with path.open("w", encoding="utf-8") as file:
        n_bytes = 0
        for text in endless_documents():
            file.write(text + SEPARATOR if ending == "txt" else json.dumps({"text": text}) + "\n")
            n_bytes += len(text.encode())
            if n_bytes >= megabytes * 10**6:
                return path
    return path


def endless_documents() -> Iterator[str]:
    """The texts of this machine in an order that is always the same, again and again."""
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
