"""Inspect a prepared folder. Count the ids that occur in the folder, and decode documents."""

from dataclasses import dataclass

import numpy as np

from gptmini.data.prepared.ids import without_marks
from gptmini.data.prepared.store import TokenStore
from gptmini.tokenizer import document_prefix

IDS_AT_ONCE = 2**20  # ids that are read at a time
SHOWN = 3  # inspect_split shows this many of the first, and this many of the longest documents


@dataclass(frozen=True, kw_only=True)
class SplitInspection:
    """The result of inspecting a split."""

    n_ids_used: int  # number of different ids that occur in the split
    # The number of tokens, without special ids, and the beginning of each of the longest documents, longest first.
    longest: list[tuple[int, str]]
    first: list[str]  # beginnings of the first documents


def inspect_split(store: TokenStore, split: str, n_shown: int) -> SplitInspection:
    """Inspect a split. Decode the first n_shown ids of each document that is shown.

    The inspection needs 24 bytes of memory per document, and memory for IDS_AT_ONCE ids.
    """
    tokenizer = store.tokenizer
    ids = store.tokens(split)
    used = np.zeros(tokenizer.n_vocab, dtype=bool)
    after_ends: list[np.ndarray] = []  # positions of the ids after each end-of-text
    for first in range(0, len(ids), IDS_AT_ONCE):
        block = without_marks(ids[first : first + IDS_AT_ONCE])
        used[block] = True
        after_ends.append(first + 1 + np.flatnonzero(block == tokenizer.end_of_text))

    n_end = 0 if tokenizer.end_of_text is None else 1
    if store.has_index:
        after = store.document_ends(split).astype(np.int64)
    else:  # the last document ends as if end-of-text followed it
        after = np.concatenate([*after_ends, [len(ids) + n_end]])
    starts = np.append(0, after[:-1])
    ends = after - n_end
    # Folders that an earlier version of gptmini prepared do not contain the ids of document_prefix.
    for before in document_prefix(tokenizer):
        firsts = without_marks(ids[np.minimum(starts, len(ids) - 1)])  # (n_documents,)
        starts = starts + ((firsts == before) & (starts < ends))
    starts, ends = starts[starts < ends], ends[starts < ends]  # without empty documents
    lengths = ends - starts

    def beginning(number: int) -> str:
        first_ids = ids[starts[number] : min(ends[number], starts[number] + n_shown)]
        return tokenizer.decode(without_marks(first_ids).tolist())

    longest = np.argsort(-lengths, kind="stable")[:SHOWN].tolist()
    return SplitInspection(
        n_ids_used=int(used.sum()),
        longest=[(int(lengths[i]), beginning(i)) for i in longest],
        first=[beginning(i) for i in range(min(SHOWN, len(lengths)))],
    )
