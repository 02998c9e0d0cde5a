"""Find the parts of a generated text that are copied word for word from the training text.

A part is copied if its tokens stand next to each other in the training tokens, and if it has at least LEAST_TOKENS
tokens and LEAST_CHARACTERS characters. Phrases such as "at the end of the" are shorter, and they are in every text. A
copied part consists of entire tokens. The search knows tokens, not letters, so it misses a part that the training text
divides into other tokens.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gptmini.console.table import cut
from gptmini.data.prepared.ids import Ids, without_marks
from gptmini.data.prepared.store import TokenStore
from gptmini.tokenizer import Tokenizer

LEAST_TOKENS = 8
LEAST_CHARACTERS = 32
# Search longer training texts only on request. On one core, a search took 1.3 seconds per 100 million tokens.
SEARCHED = 100_000_000
SHOWN = 60  # characters of the longest part in a line
CHUNK = 4_000_000  # training tokens that are searched at once; this needs about 100 MB
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that a multiplication loses no bits


class Span(NamedTuple):
    """A copied part of a generated text."""

    start: int  # number of the first token in the generated text
    end: int
    place: int  # position of the same tokens in the training tokens


class Copies(NamedTuple):
    """The copied parts of a generated text."""

    spans: Sequence[Span]  # sorted by their start; they may overlap
    share: float  # characters in any of the spans, as a fraction of all characters
    longest: Span | None  # the span with the most characters
    text: str  # text of the longest span

    def __str__(self) -> str:
        """Return the share and the start of the longest part."""
        line = f"{100 * self.share:.0f} % of the sample"
        if self.longest is not None:
            start = json.dumps(cut(self.text, SHOWN), ensure_ascii=False)
            line += f", longest {len(self.text)} characters: {start}"
        return line


def find_copies(generated: Sequence[int], store: TokenStore) -> Copies:
    """Find the parts of generated ids, without their prompt, in the training tokens."""
    n_of_token = [n_characters_of(token, store.tokenizer) for token in generated]
    n_before = np.cumsum([0, *n_of_token])  # characters before each token, (n + 1,)
    # No shorter part has enough characters.
    length = max(LEAST_TOKENS, LEAST_CHARACTERS // max([1, *n_of_token]))
    runs = runs_in(generated, store.tokens("train"), length)
    spans = [run for run in runs if n_before[run.end] - n_before[run.start] >= LEAST_CHARACTERS]

    copied_tokens = {i for span in spans for i in range(span.start, span.end)}
    n_copied = sum(n_of_token[i] for i in copied_tokens)
    longest = max(spans, key=lambda span: n_before[span.end] - n_before[span.start], default=None)
    copied = [] if longest is None else generated[longest.start : longest.end]
    return Copies(
        spans=spans,
        share=n_copied / max(1, int(n_before[-1])),
        longest=longest,
        text=store.tokenizer.decode(copied),
    )


def n_characters_of(token: int, tokenizer: Tokenizer) -> int:
    """Return the number of characters that begin in a token. End-of-text has none."""
    if token == tokenizer.end_of_text:
        return 0
    return sum(byte & 0xC0 != 0x80 for byte in tokenizer.token_bytes(token))  # 10xxxxxx continues


def runs_in(ids: Sequence[int], training: Ids, length: int) -> list[Span]:
    """Return the runs of at least `length` ids that the training ids contain, sorted by their start.

    Of the runs with the same start, only the longest is returned. Runs inside a longer run of the same place are left
    out.
    """
    own = window_hashes(np.array(ids), length)  # (n - length + 1,)
    starts_of: dict[int, list[int]] = {}
    for start, value in enumerate(own.tolist()):
        starts_of.setdefault(value, []).append(start)
    # Whether a hash of the generated ids has these 16 bits. This rules out nearly all hashes of the training ids.
    is_near = np.zeros(1 << 16, dtype=bool)
    is_near[own >> np.uint64(48)] = True

    spans: dict[int, Span] = {}
    for first in range(0, len(training), CHUNK):
        chunk = without_marks(np.asarray(training[first : first + CHUNK + len(ids)]))
        hashes = window_hashes(chunk, length)[:CHUNK]
        near = np.flatnonzero(is_near[hashes >> np.uint64(48)])
        near = near[np.isin(hashes[near], own)]
        hashes = hashes[near]
        for value, starts in starts_of.items():
            places = near[hashes == value]
            before = chunk[places - 1]
            for start in starts:
                begins = places
                if start > 0:  # leave out places inside a longer run
                    begins = places[(places == 0) | (before != ids[start - 1])]
                place, n_equal = longest_run(ids[start:], chunk, begins)

                known = spans.get(start)
                if n_equal >= length and (known is None or known.end < start + n_equal):
                    spans[start] = Span(start, start + n_equal, first + place)
    return [spans[start] for start in sorted(spans)]


def longest_run(ids: Sequence[int], chunk: np.ndarray, places: np.ndarray) -> tuple[int, int]:
    """Return the place from which the chunk continues like ids for longest, and the number of equal ids."""
    place = n_equal = 0
    for number, token in enumerate(ids):
        places = places[places + number < len(chunk)]
        places = places[chunk[places + number] == token]
        if not len(places):
            break
        place, n_equal = int(places[0]), number + 1
    return place, n_equal


def window_hashes(ids: np.ndarray, length: int) -> np.ndarray:
    """Return a 64-bit hash of each window of ids, (n,). The result has the shape (max(0, n - length + 1),)."""
    hashes = ids.astype(np.uint64) * FACTOR
    hashes ^= hashes >> np.uint64(29)
    covered = 1
    while covered < length and len(hashes):
        # Two windows that lie next to each other, or overlap, make a longer window.
        step = min(covered, length - covered)
        hashes = hashes[:-step] * FACTOR + hashes[step:]
        covered += step
    return hashes


def place_of(span: Span, store: TokenStore) -> str:
    """Return where a span is in the training text, such as "document 3, character 1,204", counted from 1.

    Mixtures and token files do not store where documents end. For them, return the number of the token.
    """
    if not store.has_index:
        return f"token {span.place + 1:,}"
    ends = store.document_ends("train")
    number = int(np.searchsorted(ends, span.place, side="right"))
    first = int(ends[number - 1]) if number else 0
    n_characters = 0
    for start in range(first, span.place, CHUNK):
        before = store.tokens("train")[start : min(start + CHUNK, span.place)]
        ids, counts = np.unique(without_marks(np.asarray(before)), return_counts=True)
        for token, count in zip(ids.tolist(), counts.tolist(), strict=True):
            n_characters += count * n_characters_of(token, store.tokenizer)
    return f"document {number + 1:,}, character {n_characters + 1:,}"
