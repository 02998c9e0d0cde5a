"""Files that hold text: found by name, unpacked, and read as documents in pieces of bounded size."""

from gptmini.data.sources.finding import find_files, without
from gptmini.data.sources.reading import Piece, Reading, read_pieces

__all__ = ["Piece", "Reading", "find_files", "read_pieces", "without"]
