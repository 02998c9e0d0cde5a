"""Turn text into tokens and targets. This package contains corpora, the token store, and the order of batches.

Importing this package does not load torch. Import gptmini.data.prepared.batches separately, because it requires torch.
"""

from gptmini.data.corpora.hub import hub_text as hub_text
from gptmini.data.corpora.mixture import Mixture as Mixture
from gptmini.data.corpora.published import PublishedText as PublishedText
from gptmini.data.corpora.pydoc import PydocCorpus as PydocCorpus
from gptmini.data.corpora.text_corpus import TextCorpus as TextCorpus
from gptmini.data.corpora.token_files import TokenFiles as TokenFiles
from gptmini.data.corpus import Corpus as Corpus
from gptmini.data.corpus import Document as Document
from gptmini.data.prepared.meta import find_prepared as find_prepared
from gptmini.data.prepared.preparation import prepare as prepare
from gptmini.data.prepared.store import TokenStore as TokenStore
