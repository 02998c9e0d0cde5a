"""From text to (tokens, targets): corpora, the token store, and batch order as a pure function.

Here stand the names that load without torch; batch order, in gptmini.data.batches, needs it.
"""

from gptmini.data.corpus import Corpus, Document
from gptmini.data.preparation import Progress, Watcher, open_prepared, prepare
from gptmini.data.published import download_file, pinned_text
from gptmini.data.pydoc import PydocCorpus
from gptmini.data.store import TokenStore, find_prepared
from gptmini.data.text_corpus import TextCorpus

__all__ = [
    "Corpus",
    "Document",
    "Progress",
    "PydocCorpus",
    "TextCorpus",
    "TokenStore",
    "Watcher",
    "download_file",
    "find_prepared",
    "open_prepared",
    "pinned_text",
    "prepare",
]
