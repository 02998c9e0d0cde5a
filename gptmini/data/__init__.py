"""Turn text into tokens and targets. This package contains corpora, the token store, and the order of batches.

Importing this package does not load torch. Import gptmini.data.batches separately, because it requires torch.
"""

from gptmini.data.corpus import Corpus as Corpus
from gptmini.data.corpus import Document as Document
from gptmini.data.hub import hub_text as hub_text
from gptmini.data.meta import find_prepared as find_prepared
from gptmini.data.mixture import Mixture as Mixture
from gptmini.data.preparation import prepare as prepare
from gptmini.data.published import PublishedText as PublishedText
from gptmini.data.pydoc import PydocCorpus as PydocCorpus
from gptmini.data.splits import Progress as Progress
from gptmini.data.splits import Watcher as Watcher
from gptmini.data.store import TokenStore as TokenStore
from gptmini.data.text_corpus import TextCorpus as TextCorpus
from gptmini.data.token_files import TokenFiles as TokenFiles
