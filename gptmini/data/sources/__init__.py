"""Files that hold text: found by name, unpacked, and read as documents in pieces of bounded size."""

from gptmini.data.sources.finding import (
    find_files,
    note_on_held_out,
    notes_on_empty,
    without_held_out,
)
from gptmini.data.sources.reading import Piece, Reading, read_pieces

__all__ = [
    "Piece",
    "Reading",
    "find_files",
    "note_on_held_out",
    "notes_on_empty",
    "read_pieces",
    "without_held_out",
]
