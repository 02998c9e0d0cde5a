"""Tokenise a text into a folder: gptmini prepare [KEY=VALUE ...]; --help lists groups and keys."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gptmini.commands.hydra_flags import run_composed
from gptmini.commands.train import show_configuration
from gptmini.configuration.compose import Composed
from gptmini.key_table import keys_with
from gptmini.process import started
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.data import TokenStore

# Ids of a document that are decoded to show its beginning, and characters of them that are shown.
SHOWN_IDS = 100
SHOWN_CHARACTERS = 72


def main(arguments: list[str]) -> None:
    """Tokenise a text, or with -m several."""
    run_composed("prepare", arguments, run_job, show_configuration)


def run_job(composed: Composed) -> None:
    """Tokenise a text, unless an earlier command has done so, and print the folder and the size of each split."""
    from rich.console import Console

    from gptmini.configuration.building import text_settings
    from gptmini.configuration.stored import resolved
    from gptmini.data.meta import SPLITS
    from gptmini.job.progress import watching
    from gptmini.job.tokens import open_tokens
    from gptmini.training.settings import PrepareSettings

    for key in sorted(keys_with("of_run")):
        value = composed.value(key)
        if value is not None:
            raise UserError(
                f"gptmini prepare begins no run and goes on with none, got {key}={value}"
            )
    plain, typed = resolved(composed)
    settings = text_settings(plain, kind=PrepareSettings)
    root = settings.root
    assert isinstance(root, PrepareSettings)
    started()

    console = Console(soft_wrap=True, highlight=False)
    with watching(console) as watcher:
        try:
            store, written = open_tokens(settings, typed, watcher=watcher)
        except KeyboardInterrupt:
            console.print("interrupted; the same command goes on with what is encoded already")
            raise
        if root.verify:
            store.verify()
        lines = list(inspection(store)) if root.inspect else []

    origin = "prepared now" if written else "prepared before"
    if root.verify:
        found = "every checksum" if store.has_checksums else "the size of every token file"
        origin += f", {found} is right"
    print(f"{store.folder}, {origin}")
    for split in SPLITS:
        print(
            f"{split:5} {store.n_tokens(split):,} tokens, {store.n_bytes(split):,} bytes, "
            f"{store.bytes_per_token(split):.2f} bytes a token"
        )
    for text in ["", *lines] if lines else []:
        print(text)


def inspection(store: "TokenStore") -> Iterator[str]:
    """Lines about both splits of a prepared folder, and their documents."""
    from gptmini.data.inspect import inspect_split
    from gptmini.data.meta import SPLITS
    from gptmini.tokenizer import from_dict

    tokenizer = from_dict(store.tokenizer_state)
    splits = {split: inspect_split(store, split, tokenizer, SHOWN_IDS) for split in SPLITS}

    yield _row("", SPLITS)
    yield _row("documents", [f"{store.n_documents(split):,}" for split in SPLITS])
    yield _row("tokens", [f"{store.n_tokens(split):,}" for split in SPLITS])
    yield _row("bytes", [f"{store.n_bytes(split):,}" for split in SPLITS])
    yield _row("bytes a token", [f"{store.bytes_per_token(split):.2f}" for split in SPLITS])
    used = [f"{splits[split].n_ids_used:,} of {tokenizer.n_vocab:,}" for split in SPLITS]
    yield _row("ids used", used)
    yield from _sources(store)

    for split, found in splits.items():
        yield ""
        yield f"longest documents of {split}, in tokens"
        for n_tokens, text in found.longest:
            yield f"{n_tokens:12,}  {_beginning(text)}"
        yield f"first documents of {split}"
        for text in found.first:
            yield f"{'':12}  {_beginning(text)}"


def _sources(store: "TokenStore") -> Iterator[str]:
    """Lines about the sources of a mixture; none for any other folder."""
    if not store.sources[0].name:
        return
    yield ""
    yield "sources, with the windows that each block takes, and tokens to train on"
    for source in store.sources:
        yield f"{source.weight:12,}  {source.name}, {source.n_tokens:,} tokens"


def _row(name: str, cells: "Sequence[str]") -> str:
    """A line of the table of the splits."""
    return f"{name:14}" + "".join(f"{cell:>20}" for cell in cells)


def _beginning(text: str) -> str:
    """The beginning of a text on one line."""
    shown = " ".join(text.split())
    shown = "".join(character if character.isprintable() else "\ufffd" for character in shown)
    if len(shown) > SHOWN_CHARACTERS:
        return f"{shown[:SHOWN_CHARACTERS]}..."
    return shown
