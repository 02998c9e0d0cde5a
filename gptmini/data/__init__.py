"""From text to (tokens, targets): corpora, the token store, and batch order as a pure function.

Here stand the names that load without torch; batch order, in gptmini.data.batches, needs it.
"""

from gptmini.data.corpus import Corpus, Document, PydocCorpus
from gptmini.data.published import download_file, pinned_text
from gptmini.data.store import TokenStore, find_prepared, open_prepared, prepare
from gptmini.data.text_corpus import TextCorpus

__all__ = [
    "Corpus",
    "Document",
    "PydocCorpus",
    "TextCorpus",
    "TokenStore",
    "download_file",
    "find_prepared",
    "open_prepared",
    "pinned_text",
    "prepare",
]
