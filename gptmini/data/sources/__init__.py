"""Files that hold text: found by name, unpacked, and read as documents in pieces of bounded size."""

from gptmini.data.sources.finding import FoundFiles, find_files
from gptmini.data.sources.reading import Piece, Reading, read_pieces

__all__ = ["FoundFiles", "Piece", "Reading", "find_files", "read_pieces"]
