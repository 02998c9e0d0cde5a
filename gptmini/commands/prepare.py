"""Tokenise text into a folder: gptmini prepare [TEXT ...] [KEY=VALUE ...]. --help lists groups and keys."""

from collections.abc import Iterator

from gptmini.commands.hydra_flags import run_hydra_command
from gptmini.configuration.building import text_settings
from gptmini.configuration.compose import Composition
from gptmini.configuration.stored import resolve_configuration
from gptmini.console.printable import printable
from gptmini.console.printing import print_lines
from gptmini.console.table import aligned, cut
from gptmini.console.terminal import make_console, show_progress
from gptmini.data import SPLITS, TokenStore, inspect_split
from gptmini.job.tokens import open_corpus, open_tokens
from gptmini.key_table import keys_with
from gptmini.system.errors import UserError
from gptmini.system.process import restore_gc_and_sigint
from gptmini.training import PrepareSettings

# To print the start of a document, decode SHOWN_IDS ids and print SHOWN_CHARACTERS characters.
SHOWN_IDS = 100
SHOWN_CHARACTERS = 72


def main(arguments: list[str]) -> None:
    """Tokenise a text, or several texts with -m."""
    run_hydra_command("prepare", arguments, run_job)


def run_job(composition: Composition) -> None:
    """Tokenise a text unless it is already prepared, and print the folder and the size of each split."""
    for key in sorted(keys_with("of_run")):
        value = composition.config.get(key)
        if value is not None:
            raise UserError(f"gptmini prepare does not train a run; leave out {key}={value}")
    plain, request = resolve_configuration(composition)
    settings = text_settings(plain)
    root = settings.root
    assert isinstance(root, PrepareSettings)
    restore_gc_and_sigint()

    console = make_console()
    with show_progress(console) as watcher:
        try:
            corpus = open_corpus(settings)
            is_auto = "tokenizer.vocab_size" in settings.auto_keys and corpus.is_text
            _, store, written = open_tokens(settings, request, watcher=watcher, corpus=corpus)
        except KeyboardInterrupt:
            console.print("interrupted; to continue, run the same command again")
            raise
        if root.verify:
            store.verify()
        lines = list(inspection(store)) if root.inspect else []

    origin = "prepared now" if written else "prepared before"
    if root.verify:
        checked = "checksums" if store.has_checksums else "sizes"
        origin += f", all {checked} match"
    print_lines(f"{store.folder}, {origin}")
    if is_auto:
        n_vocab = store.tokenizer.n_vocab
        print_lines(f"vocab {n_vocab:,} tokens, which suit the size of the text")
    for split in SPLITS:
        print_lines(
            f"{split:5} {store.n_tokens(split):,} tokens, {store.n_bytes(split):,} bytes, "
            f"{store.bytes_per_token(split):.2f} bytes per token"
        )
    if lines:
        print_lines("", *lines)


def inspection(store: TokenStore) -> Iterator[str]:
    """Yield lines about both splits of a prepared folder and about the documents in each split."""
    splits = {split: inspect_split(store, split, SHOWN_IDS) for split in SPLITS}
    columns = [("", "documents", "tokens", "bytes", "bytes per token", "ids used")]
    for split in SPLITS:
        column = (
            split,
            f"{store.n_documents(split):,}",
            f"{store.n_tokens(split):,}",
            f"{store.n_bytes(split):,}",
            f"{store.bytes_per_token(split):.2f}",
            f"{splits[split].n_ids_used:,} of {store.tokenizer.n_vocab:,}",
        )
        columns.append(column)
    yield from aligned([*zip(*columns, strict=True)])

    if store.sources[0].name:
        yield ""
        yield "sources: windows per block, name, training tokens"
        for source in store.sources:
            yield f"{source.weight:12,}  {source.name}, {source.n_tokens:,} tokens"

    for split, documents in splits.items():
        yield ""
        yield f"longest documents of {split}, in tokens"
        for n_tokens, text in documents.longest:
            yield f"{n_tokens:12,}  {_start_of(text)}"
        yield f"first documents of {split}"
        for text in documents.first:
            yield f"{'':12}  {_start_of(text)}"


def _start_of(text: str) -> str:
    return cut(printable(" ".join(text.split())), SHOWN_CHARACTERS)
