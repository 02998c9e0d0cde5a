"""Documents in pieces of bounded size, so that no document need fit into memory."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gptmini.user_error import UserError

# Characters of a piece. A piece may be shorter, where a document ends, or longer, where white space is far away.
PIECE = 2**20
# Characters without a place to cut them; a longer run is refused by name, because it has to be held in memory.
LONGEST_RUN = 2**24
# Where a text may be cut: before white space that follows what is none. Python counts a few more characters as white
# space than the tokenizers do, and before these few, or behind them, nothing is cut.
# In this order Python looks for the white space alone first.
CUT = re.compile(r"[ \t-\r](?<=\S[ \t-\r])")
LAST_CUT = re.compile(r"(?s:.*)\S(?=[ \t-\r])")  # matches from a start to the last such place


class Piece(NamedTuple):
    """A part of a document; joined, the pieces of a document are its text."""

    text: str
    ends: bool  # whether the document ends with this piece
    where: str = ""  # of a chat, how a message about it begins: the file, and the line or row


def in_pieces(parts: Iterator[Piece], file: Path) -> Iterator[Piece]:
    """Put parts of documents together to pieces, whose sizes do not depend on those of the parts.

    Args:
        parts: texts of any size, which may be empty, each with whether a document ends behind it.
        file: the name that an error gives.

    Raises UserError: a run of characters that is too long and has no place to cut it.
    """
    pending = ""  # what is read of a document and is not yet part of a piece
    searched = 0  # characters of pending that hold no place to cut; 0 where that is not known
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
                f"{file} must have a space or a line break behind a word at least every {LONGEST_RUN:,} characters, "
                f"got a longer run, which begins {pending[:20]!r}"
            )
        if ends:
            if pending:
                yield Piece(pending, ends=True, where=where)
            pending = ""
            searched = 0


def _place_to_cut(text: str, start: int, searched: int) -> int | None:
    """The last place to cut a text for a piece of at most PIECE characters, or else the first place behind it.

    Before `searched` the text is known to have no such place, so that a long run is not searched again and again.
    """
    if not searched:
        last = LAST_CUT.match(text, start, start + PIECE + 1)
        if last is not None:
            return last.end()
    found = CUT.search(text, max(start + PIECE, searched))
    return None if found is None else found.start()
