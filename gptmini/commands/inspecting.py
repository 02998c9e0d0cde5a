"""What gptmini prepare inspect=true shows of a prepared folder."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptmini.data import Progress, TokenStore

# Ids of a document that are decoded to show its beginning, and characters of them that are shown.
SHOWN_IDS = 100
SHOWN_CHARACTERS = 72


def inspection(store: "TokenStore", on_progress: "Callable[[Progress], None]") -> Iterator[str]:
    """Lines about both splits of a prepared folder, their documents, and what they share."""
    from gptmini.data.format import SPLITS
    from gptmini.data.inspection import inspect_overlap, inspect_split
    from gptmini.data.overlap import WINDOW
    from gptmini.tokenizer import from_dict

    tokenizer = from_dict(store.tokenizer_state)
    splits = {split: inspect_split(store, split, tokenizer, SHOWN_IDS) for split in SPLITS}

    rows = {
        "documents": [f"{found.n_documents:,}" for found in splits.values()],
        "tokens": [f"{found.n_tokens:,}" for found in splits.values()],
        "bytes": [f"{found.n_bytes:,}" for found in splits.values()],
        "bytes a token": [f"{found.n_bytes / found.n_tokens:.2f}" for found in splits.values()],
        "ids used": [f"{found.n_ids_used:,} of {tokenizer.n_vocab:,}" for found in splits.values()],
    }
    yield _row("", splits)
    for name, cells in rows.items():
        yield _row(name, cells)
    yield from _sources(store)

    for split, found in splits.items():
        yield ""
        yield f"longest documents of {split}, in tokens"
        for longest in found.longest:
            yield f"{longest.n_tokens:12,}  {_beginning(longest.beginning)}"
        yield f"first documents of {split}"
        for text in found.first:
            yield f"{'':12}  {_beginning(text)}"

    overlap = inspect_overlap(store, tokenizer, on_progress)
    yield ""
    if not overlap.n_compared:
        yield f"overlap: no held-out document has the {WINDOW} characters that are compared"
        return
    share = overlap.n_shared / overlap.n_compared
    share_of_windows = overlap.n_windows_shared / overlap.n_windows
    yield (
        f"overlap: {overlap.n_shared:,} of {overlap.n_compared:,} held-out documents that were compared "
        f"({share:.1%}) share {WINDOW} characters in a row with the training text"
    )
    yield (
        f"         {share_of_windows:.1%} of the different passages of {WINDOW} characters in them stand in the "
        "training text"
    )


def _sources(store: "TokenStore") -> Iterator[str]:
    """Lines about the sources of a mixture; none for any other folder."""
    if not store.sources[0].name:
        return
    yield ""
    yield "sources, with the windows that each block takes, and tokens to train on"
    for source in store.sources:
        yield f"{source.weight:12,}  {source.name}, {source.n_tokens:,} tokens"


def _row(name: str, cells: "Iterator[str] | list[str] | dict") -> str:
    """A line of the table of the splits."""
    return f"{name:14}" + "".join(f"{cell:>20}" for cell in cells)


def _beginning(text: str) -> str:
    """The beginning of a text on one line."""
    shown = " ".join(text.split())
    shown = "".join(character if character.isprintable() else "\ufffd" for character in shown)
    if len(shown) > SHOWN_CHARACTERS:
        return f"{shown[:SHOWN_CHARACTERS]}..."
    return shown
