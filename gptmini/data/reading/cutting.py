"""Cut documents into parts of bounded size, so that a document does not have to fit into memory."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from gptmini.system.errors import UserError
from gptmini.tokenizer import Document

# Number of characters of a part. The last part of a document may be shorter. A part is longer if the text does not
# contain white space.
PART = 2**20
# Length of the longest run of characters without a place to cut. A longer run is an error, because a run must fit into
# memory.
LONGEST_RUN = 2**24
# Text is cut before white space if the character before it is not white space. A few characters are white space in
# Python, but not in the tokenizers. Text is not cut before or after these characters.
# The pattern starts with the white space, because Python then finds matches faster.
CUT = re.compile(r"[ \t-\r](?<=\S[ \t-\r])")
LAST_CUT = re.compile(r"(?s:.*)\S(?=[ \t-\r])")  # matches up to the last place to cut


def in_parts(blocks: Iterable[Document], file: Path) -> Iterator[Document]:
    """Join blocks of documents, and cut the documents into parts. The sizes of the blocks do not change the parts.

    Each part ends before white space that follows a word, except the last part of a document. In gptmini's tokenizers,
    a token never crosses a cut at this place. Empty documents are skipped.

    Raises UserError, which names the file, if a run of characters without a place to cut is too long.
    """
    pending = ""  # text of the current document that is not yet in a part
    # The first `searched` characters of pending have no place to cut. The number is 0 if this is unknown.
    searched = 0
    for block in blocks:
        pending += block.text
        start = 0
        while len(pending) - start > PART:
            cut = _place_to_cut(pending, start, searched)
            if cut is None:
                break
            yield Document(block.split, pending[start:cut], ends=False)
            start = cut
            searched = 0
        pending = pending[start:]
        searched = len(pending) if len(pending) > PART else 0

        if len(pending) > PART + LONGEST_RUN:
            raise UserError(
                f"{file} has more than {LONGEST_RUN:,} characters without white space, which start with "
                f"{pending[:20]!r}; add white space"
            )
        if block.ends:
            if pending:
                yield block._replace(text=pending)
            pending = ""
            searched = 0


def _place_to_cut(text: str, start: int, searched: int) -> int | None:
    """Return the last place to cut within PART characters from `start`, or otherwise the next place after them.

    The first `searched` characters have no place to cut. These characters are not searched a second time.
    """
    if not searched:
        last = LAST_CUT.match(text, start, start + PART + 1)
        if last is not None:
            return last.end()
    following = CUT.search(text, max(start + PART, searched))
    return None if following is None else following.start()
