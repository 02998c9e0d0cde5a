"""What is in a prepared folder: ids that are used, documents decoded back, and what both splits share."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gptmini.data.store import TokenStore, without_marks
from gptmini.tokenizer import Tokenizer, before_documents

IDS_AT_ONCE = 2**20  # ids that are read or decoded at once
SHOWN = 3  # documents that are shown from the beginning of a split, and longest documents that are named

GRAM = 13  # words in a row that are compared, as in Brown et al. 2020, appendix C
# Words are compared without case and punctuation. A character of Chinese or Japanese counts as a word.
WORD = re.compile("[\u3040-\u9fff]|[^\\W\u3040-\u9fff]+")
# Held-out ids that are compared, about. Each word of them takes a hundred bytes of memory.
MOST_COMPARED = 2**21
# Ids that are decoded once more with the ids behind them, so that a gram across the border is found: 20 ids a word.
OVERLAP = 20 * GRAM
BASE = np.uint64(0x9E3779B97F4A7C15)  # odd: the golden ratio's multiplier of Fibonacci hashing


class Longest(NamedTuple):
    """One of the longest documents of a split."""

    n_tokens: int  # without the ids around the text
    beginning: str


@dataclass(frozen=True, kw_only=True)
class SplitInspection:
    """What is in a split."""

    n_ids_used: int  # different ids
    longest: list[Longest]  # the longest first
    first: list[str]  # beginnings of the first documents


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What held-out documents share with the training text."""

    n_compared: int  # held-out documents of at least GRAM words
    n_shared: int  # those of them with GRAM words in a row that stand in the training text too
    n_grams: int  # different passages of GRAM words in the compared documents
    n_grams_shared: int  # those of them that stand in the training text too


def inspect_split(
    store: TokenStore, split: str, tokenizer: Tokenizer, n_shown: int
) -> SplitInspection:
    """Look through a split; of documents that are shown, n_shown ids are decoded.

    Memory is 24 bytes for each document, beside IDS_AT_ONCE ids.
    """
    ids = store.tokens(split)
    used = np.zeros(tokenizer.n_vocab, dtype=bool)
    for first in range(0, len(ids), IDS_AT_ONCE):
        used[without_marks(ids[first : first + IDS_AT_ONCE])] = True

    starts, ends = _documents(store, split, tokenizer)
    lengths = ends - starts

    def beginning(number: int) -> str:
        shown = ids[starts[number] : min(ends[number], starts[number] + n_shown)]
        return tokenizer.decode(without_marks(shown).tolist())

    longest = np.argsort(-lengths, kind="stable")[:SHOWN].tolist()
    return SplitInspection(
        n_ids_used=int(used.sum()),
        longest=[Longest(int(lengths[i]), beginning(i)) for i in longest],
        first=[beginning(i) for i in range(min(SHOWN, len(lengths)))],
    )


def inspect_overlap(
    store: TokenStore, tokenizer: Tokenizer, on_share: Callable[[float], None]
) -> Overlap:
    """Look for the passages of GRAM words of held-out documents in the training text, which is read once.

    Of more than MOST_COMPARED held-out ids, every so many-th document is compared, and its first MOST_COMPARED ids.
    Passages are compared by hashes of 64 bits. Memory is about 270 MB at most, beside 24 bytes for each held-out
    document.

    Args:
        store: a prepared folder.
        tokenizer: its tokenizer.
        on_share: is told again and again which share of the training text has been compared.
    """
    ids = store.tokens("val")
    every = max(1, round(len(ids) / MOST_COMPARED))
    starts, ends = _documents(store, "val", tokenizer)
    held_out = []
    for start, end in zip(starts[::every], ends[::every], strict=True):
        document = ids[start : min(end, start + MOST_COMPARED)]
        grams = gram_hashes(tokenizer.decode(without_marks(document).tolist()))
        if len(grams):
            held_out.append(grams)

    wanted = {gram for grams in held_out for gram in grams.tolist()}
    found: set[int] = set()
    ids = store.tokens("train")
    for first in range(0, len(ids), IDS_AT_ONCE):
        some = ids[max(0, first - OVERLAP) : first + IDS_AT_ONCE]
        grams = gram_hashes(tokenizer.decode(without_marks(some).tolist()))
        found |= wanted.intersection(grams.tolist())
        on_share(min(1.0, (first + IDS_AT_ONCE) / len(ids)))

    return Overlap(
        n_compared=len(held_out),
        n_shared=sum(not found.isdisjoint(grams.tolist()) for grams in held_out),
        n_grams=len(wanted),
        n_grams_shared=len(found),
    )


def gram_hashes(text: str) -> np.ndarray:
    """A hash of every GRAM words in a row, uint64 (number of words - GRAM + 1,); of fewer words none."""
    words = WORD.findall(text.lower())
    n_grams = max(0, len(words) - GRAM + 1)
    of_words = np.fromiter(map(hash, words), dtype=np.int64, count=len(words)).view(np.uint64)

    hashes = np.zeros(n_grams, dtype=np.uint64)
    for i in range(GRAM):  # a polynomial in BASE; arithmetic modulo 2^64 is meant
        hashes = hashes * BASE + of_words[i : i + n_grams]
    return hashes


def _documents(
    store: TokenStore, split: str, tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """Where the text of each document of a split starts and ends, in ids, int64 (n,) each.

    Where the folder has no index, documents are told apart by end-of-text.
    """
    ids = store.tokens(split)
    n_end = 0 if tokenizer.end_of_text is None else 1
    if store.has_index:
        behind = store.document_ends(split).astype(np.int64)
    else:
        found = []
        for first in range(0, len(ids), IDS_AT_ONCE):
            some = without_marks(ids[first : first + IDS_AT_ONCE])
            is_end = some == tokenizer.end_of_text
            found.append(first + 1 + np.flatnonzero(is_end))
        found.append(np.array([len(ids) + n_end]))  # as if end-of-text ended the last one too
        behind = np.concatenate(found)

    starts = np.append(0, behind[:-1])
    ends = behind - n_end
    # A folder of an earlier version has none of these ids.
    for before in before_documents(tokenizer):
        firsts = without_marks(ids[np.minimum(starts, len(ids) - 1)])  # (n,)
        starts = starts + ((firsts == before) & (starts < ends))
    is_filled = starts < ends
    return starts[is_filled], ends[is_filled]
