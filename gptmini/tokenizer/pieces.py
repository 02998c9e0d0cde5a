r"""Split text into pieces for byte-pair merging. A faster pattern gives the same pieces as GPT-2's pattern.

If a word follows a run of white space, GPT-2's pattern makes one piece of the run without its last character. If the
last character is a space, it joins the word. For this purpose, the pattern contains the lookahead `\s+(?!\S)`. With
lookahead, tiktoken's regular expressions take twice as long. Therefore, gptmini puts a mark before the last character
of each run that text follows. If the text is split at the marks, a pattern without lookahead gives the same pieces:

- Before a mark, the part of the text ends with the run. GPT-2's pattern and the faster pattern both make one piece of
  this run.
- After a mark, and for a run of one character, GPT-2's pattern and the faster pattern can match in only one way.
"""

from collections.abc import Iterator

import numpy as np

# GPT-2's pattern, written with possessive quantifiers as in tiktoken. A piece is a contraction, a word, a number,
# punctuation or white space. Merges do not cross pieces (Radford et al. 2019, section 2.2).
SPLIT_PATTERN = (
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
)

# The pattern for texts into which insert_marks() has put marks. tiktoken splits these texts at MARK and SEPARATOR.
MARKED_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"""
MARK = "\x00"
SEPARATOR = "\x01"  # this character separates texts that are encoded in one call

# The characters that `\s` matches in the pattern. In Python, U+001C to U+001F are white space too (str.isspace). In the
# pattern, these four characters are punctuation.
SPACES = (
    "\t\n\v\f\r \x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

# For each code point, whether it is white space. The last entry stands for all larger code points.
_IS_SPACE = np.zeros(ord(SPACES[-1]) + 2, dtype=bool)
_IS_SPACE[[ord(character) for character in SPACES]] = True


def insert_marks(text: str) -> str:
    """Insert MARK before the last character of each run of white space, if other text follows the run.

    SEPARATOR and the end of the text do not count as other text. Raises UnicodeEncodeError if the text contains a lone
    surrogate.
    """
    # If each character is one byte, NumPy takes a quarter of the time.
    encoding, dtype = ("ascii", "u1") if text.isascii() else ("utf-32-le", "<u4")
    codes = np.frombuffer(text.encode(encoding), dtype=dtype)
    is_space = _IS_SPACE.take(codes, mode="clip")

    ends_before = is_space | (codes == ord(SEPARATOR))
    is_last_but_one = is_space[:-2] & is_space[1:-1] & ~ends_before[2:]
    places = np.flatnonzero(is_last_but_one) + 1
    return np.insert(codes, places, ord(MARK)).tobytes().decode(encoding)


def split_long_runs(text: str, longest: int) -> Iterator[str]:
    """Split a text so that each run of white space, or of other characters, has at most `longest` characters.

    Joined together, the parts are the same as the text. Raises UnicodeEncodeError if the text contains a lone
    surrogate.
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
