"""gptmini.prepare: tokens of a text, in a store that has its tokenizer."""

from pathlib import Path

from gptmini.data import Corpus, TokenStore, Watcher
from gptmini.data import prepare as prepare_tokens
from gptmini.data.encoder import BuildEncoder
from gptmini.tokenizer import from_dict


def prepare(
    corpus: Corpus,
    build_encoder: BuildEncoder,
    root: str | Path,
    *,
    n_workers: int = 1,
    watcher: Watcher | None = None,
) -> tuple[TokenStore, bool]:
    """Open the tokens of a corpus under a tokenizer, writing them first if they are not there.

    Args:
        corpus: the text, as gptmini.data.TextCorpus.
        build_encoder: a builder of gptmini.tokenizer, as gptmini.tokenizer.byte, or a functools.partial of one.
        root: folder that holds the prepared folders.
        n_workers: threads that encode. The result does not depend on their number.
        watcher: is told of the progress.

    Returns the store, whose property tokenizer is the tokenizer, and whether it had to be written.
    Raises UserError: a text that cannot be read or encoded, a split without text, or a damaged prepared folder.
    """
    return prepare_tokens(
        corpus,
        build_encoder,
        root,
        rebuild=from_dict,
        n_workers=n_workers,
        watcher=watcher,
    )
