"""Files that hold text: found by name, unpacked, and read as documents in pieces of bounded size."""

from gptmini.data.sources.decoding import Encoding
from gptmini.data.sources.finding import (
    Paths,
    find_files,
    note_on_held_out,
    notes_on_empty,
    without_held_out,
)
from gptmini.data.sources.reading import (
    FieldName,
    OnError,
    Piece,
    Reading,
    Separator,
    read_pieces,
)

__all__ = [
    "Encoding",
    "FieldName",
    "OnError",
    "Paths",
    "Piece",
    "Reading",
    "Separator",
    "find_files",
    "note_on_held_out",
    "notes_on_empty",
    "read_pieces",
    "without_held_out",
]
