r"""Split text into pieces for byte-pair merging: GPT-2's pattern, and a faster pattern that gives the same pieces.

If a word follows a run of white space, GPT-2's pattern makes one piece of the run without its last character. The last
character joins the word if it is a space. The pattern needs lookahead for this, `\s+(?!\S)`, and tiktoken's regular
expressions take twice as long with lookahead. So gptmini first marks the last character of each such run. If the text
is split at the marks, a pattern without lookahead gives the same pieces:

- Before a mark, the part of the text ends with the run. Both patterns make one piece of such a run.
- After a mark, and for a run of one character, both patterns can match in only one way.
"""

from collections.abc import Iterator

import numpy as np

# GPT-2's own pattern, in tiktoken's spelling with possessive quantifiers. A piece is a contraction, a word, a number,
# punctuation or white space. Merges do not cross pieces (Radford et al. 2019, section 2.2).
SPLIT_PATTERN = (
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
)

# The pattern for texts in which insert_marks() has put marks. These texts are split at MARK and SEPARATOR.
MARKED_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"""
MARK = "\x00"
SEPARATOR = "\x01"  # between texts that are encoded in one call

# White space, `\s` of the pattern. In Python, U+001C to U+001F are white space too (str.isspace). In the pattern, they
# are punctuation.
SPACES = (
    "\t\n\v\f\r \x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

# Whether each code point is white space. The last entry stands for all larger code points.
_IS_SPACE = np.zeros(ord(SPACES[-1]) + 2, dtype=bool)
_IS_SPACE[[ord(character) for character in SPACES]] = True


def insert_marks(text: str) -> str:
    """Insert MARK before the last character of each run of white space, if other text follows the run.

    SEPARATOR and the end of the text do not count as other text. Raises UnicodeEncodeError for a lone surrogate.
    """
    # NumPy takes a quarter of the time if each character is one byte.
    encoding, dtype = ("ascii", "u1") if text.isascii() else ("utf-32-le", "<u4")
    codes = np.frombuffer(text.encode(encoding), dtype=dtype)
    is_space = _IS_SPACE.take(codes, mode="clip")

    ends_before = is_space | (codes == ord(SEPARATOR))
    is_last_but_one = is_space[:-2] & is_space[1:-1] & ~ends_before[2:]
    places = np.flatnonzero(is_last_but_one) + 1
    return np.insert(codes, places, ord(MARK)).tobytes().decode(encoding)


def split_long_runs(text: str, longest: int) -> Iterator[str]:
    """Split a text so that each run of white space, or of other characters, has at most `longest` characters.

    The joined parts equal the text. Raises UnicodeEncodeError for a lone surrogate.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    is_space = _IS_SPACE.take(codes, mode="clip")

    changes = np.flatnonzero(is_space[1:] != is_space[:-1]) + 1
    edges = np.concatenate([[0], changes, [len(text)]])
    is_long = np.diff(edges) > longest

    start = 0
    for i in np.flatnonzero(is_long).tolist():
        for end in range(int(edges[i]) + longest, int(edges[i + 1]), longest):
            yield text[start:end]
            start = end
    yield text[start:]
