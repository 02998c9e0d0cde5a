r"""The pieces of a text that byte pairs are merged in: GPT-2's rule, and a faster rule for the same pieces.

Of a run of white space that a word follows, GPT-2's rule makes a piece of all but the last character, which goes with
the word if it is a space. The rule looks ahead for that, `\s+(?!\S)`, and tiktoken's regular expressions take twice as
long with lookahead as without. So the last character of each such run is marked beforehand. A text that is cut at
the marks has the same pieces by a rule without lookahead:

- In front of a mark, the run ends with the text. Both rules make one piece of such a run.
- Behind a mark, and wherever a run is a single character, no rule has a choice.
"""

from collections.abc import Iterator

import numpy as np

# GPT-2's own rule for where a merge may not cross: contractions, words, numbers, punctuation, spaces
# (Radford et al. 2019, section 2.2), in tiktoken's spelling with possessive quantifiers.
SPLIT_PATTERN = (
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
)

# The rule for texts that marked() has marked and that are cut at MARK and SEPARATOR.
MARKED_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"""
MARK = "\x00"
SEPARATOR = "\x01"  # between texts that are encoded by one call

# White space, `\s` of the rule. Python's str.isspace also counts U+001C to U+001F, which are punctuation to the rule.
SPACES = (
    "\t\n\v\f\r \x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

# Whether a code point is white space, up to the first that is larger than all of them and stands for the rest.
_IS_SPACE = np.zeros(ord(SPACES[-1]) + 2, dtype=bool)
_IS_SPACE[[ord(character) for character in SPACES]] = True


def marked(text: str) -> str:
    """Put MARK before the last character of each run of white space that more than a SEPARATOR, or the end, follows.

    Raises UnicodeEncodeError: a lone surrogate.
    """
    # Numpy takes a quarter of the time where a character is a byte.
    encoding, dtype = ("ascii", "u1") if text.isascii() else ("utf-32-le", "<u4")
    codes = np.frombuffer(text.encode(encoding), dtype=dtype)
    is_space = _IS_SPACE.take(codes, mode="clip")

    ends_before = is_space | (codes == ord(SEPARATOR))
    is_last_but_one = is_space[:-2] & is_space[1:-1] & ~ends_before[2:]
    places = np.flatnonzero(is_last_but_one) + 1
    return np.insert(codes, places, ord(MARK)).tobytes().decode(encoding)


def in_short_runs(text: str, longest: int) -> Iterator[str]:
    """Cut a text so that no run of white space, and none of other characters, is longer than `longest` characters.

    Joined, the parts are the text. Raises UnicodeEncodeError: a lone surrogate.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    is_space = _IS_SPACE.take(codes, mode="clip")

    turns = np.flatnonzero(is_space[1:] != is_space[:-1]) + 1
    edges = np.concatenate([[0], turns, [len(text)]])
    is_long = np.diff(edges) > longest

    start = 0
    for i in np.flatnonzero(is_long).tolist():
        for end in range(int(edges[i]) + longest, int(edges[i + 1]), longest):
            yield text[start:end]
            start = end
    yield text[start:]
