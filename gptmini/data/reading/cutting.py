"""Cut documents into pieces of bounded size, so that a document does not have to fit into memory."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gptmini.system.errors import UserError

# Number of characters of a piece. The last piece of a document may be shorter. A piece is longer if the text does not
# contain white space.
PIECE = 2**20
# Length of the longest run of characters without a place to cut. A longer run is an error, because a run must fit into
# memory.
LONGEST_RUN = 2**24
# Text is cut before white space if the character before it is not white space. A few characters are white space in
# Python, but not in the tokenizers. Text is not cut before or after these characters.
# The pattern starts with the white space, because Python then finds matches faster.
CUT = re.compile(r"[ \t-\r](?<=\S[ \t-\r])")
LAST_CUT = re.compile(r"(?s:.*)\S(?=[ \t-\r])")  # matches up to the last place to cut


class Piece(NamedTuple):
    """A part of a document. All pieces of a document, joined in order, are the text of the document."""

    text: str
    ends: bool  # whether this is the last piece of its document
    where: str = ""  # the file and the line (or row) of a chat; messages show this place


def in_pieces(parts: Iterator[Piece], file: Path) -> Iterator[Piece]:
    """Join parts of documents and cut them into pieces. The sizes of the parts do not change the pieces.

    Raises UserError, which names the file, if a run of characters without a place to cut is too long.
    """
    pending = ""  # text of the current document that is not yet in a piece
    # The first `searched` characters of pending have no place to cut. The number is 0 if this is unknown.
    searched = 0
    for text, ends, where in parts:
        pending += text
        start = 0
        while len(pending) - start > PIECE:
            cut = _place_to_cut(pending, start, searched)
            if cut is None:
                break
            yield Piece(pending[start:cut], ends=False)
            start = cut
            searched = 0
        pending = pending[start:]
        searched = len(pending) if len(pending) > PIECE else 0

        if len(pending) > PIECE + LONGEST_RUN:
            raise UserError(
                f"{file} has a run of more than {LONGEST_RUN:,} characters without white space; "
                f"add white space to this run, which starts with {pending[:20]!r}"
            )
        if ends:
            if pending:
                yield Piece(pending, ends=True, where=where)
            pending = ""
            searched = 0


def _place_to_cut(text: str, start: int, searched: int) -> int | None:
    """Return the last place to cut within the first PIECE characters, or otherwise the next place after them.

    The first `searched` characters have no place to cut. These characters are not searched a second time.
    """
    if not searched:
        last = LAST_CUT.match(text, start, start + PIECE + 1)
        if last is not None:
            return last.end()
    found = CUT.search(text, max(start + PIECE, searched))
    return None if found is None else found.start()
