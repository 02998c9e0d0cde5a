"""Write text of any size: files of Python and the system, or generated Chinese."""

import argparse
import json
import random
import sys
import sysconfig
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path

# Python's folders, and other folders with text on most systems.
ROOTS = [Path(sysconfig.get_path("stdlib")), Path("/usr/share"), Path("/usr/lib"), Path(sys.prefix)]
SMALLEST = 200  # bytes; smaller files are left out
LARGEST = 300_000  # bytes; larger files are left out
SEPARATOR = "<|document|>"
CHINESE = "chinese.txt"
# What ends a clause: comma, full stop, comma of a list, end of a paragraph.
MARKS = ["\uff0c"] * 6 + ["\u3002"] * 3 + ["\u3001", "\u3002\n"]


def text_of(arguments: argparse.Namespace, megabytes: int, ending: str = "txt") -> Path:
    """Return a text file with this number of megabytes, txt, jsonl or CHINESE; write it if it does not exist."""
    path = arguments.folder / f"{megabytes}.{ending}"
    if path.exists():
        return path
    documents = chinese_documents() if ending == CHINESE else endless_documents()
    with path.open("w", encoding="utf-8") as file:
        n_bytes = 0
        for text in documents:
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


def chinese_documents() -> Iterator[str]:
    """Yield generated Chinese documents of 2,000 words, without end.

    A word has one to four of the 3,755 common characters of GB 2312, and a clause has two to seven words. Words and
    characters are random and follow Zipf's law.
    """
    draw = random.Random(0)
    codes = ((high, low) for high in range(0xB0, 0xD8) for low in range(0xA1, 0xFF))
    common = [*b"".join(map(bytes, codes)).decode("gb2312", errors="ignore")]
    draw.shuffle(common)  # GB 2312 sorts them by sound
    lengths = draw.choices(range(1, 5), weights=[20, 65, 10, 5], k=20_000)
    characters = iter(draw.choices(common, cum_weights=zipf(len(common)), k=sum(lengths)))
    words = ["".join(islice(characters, length)) for length in lengths]
    frequencies = zipf(len(words))
    while True:
        chosen = iter(draw.choices(words, cum_weights=frequencies, k=2000))
        text = ""
        while clause := "".join(islice(chosen, draw.randint(2, 7))):
            text += clause + draw.choice(MARKS)
        yield text


def zipf(number: int) -> list[float]:
    """Return the cumulative relative frequencies of this number of words."""
    return [*accumulate(1 / rank for rank in range(1, number + 1))]
