"""Turn text into tokens and targets. This package contains corpora, the token store, and the order of batches.

Importing this package does not load torch. Import gptmini.data.batches separately, because it requires torch.
"""

from gptmini.data.corpus import Corpus, Document
from gptmini.data.hub import hub_text
from gptmini.data.meta import find_prepared
from gptmini.data.mixture import Mixture
from gptmini.data.preparation import prepare
from gptmini.data.published import PublishedText
from gptmini.data.pydoc import PydocCorpus
from gptmini.data.splits import Progress, Watcher
from gptmini.data.store import TokenStore
from gptmini.data.text_corpus import TextCorpus
from gptmini.data.token_files import TokenFiles

__all__ = [
    "Corpus",
    "Document",
    "Mixture",
    "Progress",
    "PublishedText",
    "PydocCorpus",
    "TextCorpus",
    "TokenFiles",
    "TokenStore",
    "Watcher",
    "find_prepared",
    "hub_text",
    "prepare",
]
