"""gptmini.prepare: tokens of a text, in a store that has its tokenizer."""

from pathlib import Path
from typing import Any

from gptmini.data import Corpus, TokenStore
from gptmini.data import prepare as prepare_tokens
from gptmini.data.encoder import BuildEncoder
from gptmini.tokenizer import from_dict


def prepare(
    corpus: Corpus, build_encoder: BuildEncoder, root: str | Path, **options: Any
) -> tuple[TokenStore, bool]:
    """Open the tokens of a corpus under a tokenizer, writing them first if they are not there.

    It is gptmini.data.prepare, whose options it takes, with a store that hands out the tokenizer.

    Returns the store, and whether it had to be written.
    Raises UserError: a text that cannot be read or encoded, a split without text, or a damaged prepared folder.
    """
    return prepare_tokens(corpus, build_encoder, root, rebuild=from_dict, **options)
