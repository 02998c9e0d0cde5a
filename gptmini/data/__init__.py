"""Turn text into tokens and targets.

corpus.py is the interface of a text. reading/ opens files, and prepared/ turns a text into a folder of tokens and
reads batches from it. corpora/ contains the texts that configurations name. Each room imports only from the rooms
before it.

Each name is imported at its first use. Only the names of prepared/batches.py require torch.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names

if TYPE_CHECKING:
    from gptmini.data.corpora.hub import hub_text as hub_text
    from gptmini.data.corpora.mixture import Mixture as Mixture
    from gptmini.data.corpora.published import PublishedText as PublishedText
    from gptmini.data.corpora.pydoc import PydocCorpus as PydocCorpus
    from gptmini.data.corpora.text_corpus import TextCorpus as TextCorpus
    from gptmini.data.corpora.token_files import TokenFiles as TokenFiles
    from gptmini.data.corpus import Corpus as Corpus
    from gptmini.data.prepared.batches import batches as batches
    from gptmini.data.prepared.batches import split_windows as split_windows
    from gptmini.data.prepared.batches import validation_windows as validation_windows
    from gptmini.data.prepared.chat_tokens import first_question as first_question
    from gptmini.data.prepared.copies import SEARCHED as SEARCHED
    from gptmini.data.prepared.copies import Copies as Copies
    from gptmini.data.prepared.copies import find_copies as find_copies
    from gptmini.data.prepared.copies import place_of as place_of
    from gptmini.data.prepared.ids import NOT_COUNTED as NOT_COUNTED
    from gptmini.data.prepared.ids import without_marks as without_marks
    from gptmini.data.prepared.inspect import inspect_split as inspect_split
    from gptmini.data.prepared.meta import SPLITS as SPLITS
    from gptmini.data.prepared.meta import find_prepared as find_prepared
    from gptmini.data.prepared.meta import read_meta as read_meta
    from gptmini.data.prepared.order import sequence_keys as sequence_keys
    from gptmini.data.prepared.order import starts_in_sources as starts_in_sources
    from gptmini.data.prepared.order import step_sequences as step_sequences
    from gptmini.data.prepared.preparation import prepare as prepare
    from gptmini.data.prepared.store import Excerpt as Excerpt
    from gptmini.data.prepared.store import TokenStore as TokenStore
    from gptmini.data.prepared.store import tokens_per_byte_of as tokens_per_byte_of
    from gptmini.data.reading.chat_formats import checked_messages as checked_messages
    from gptmini.data.reading.paths import copied_stdin as copied_stdin
    from gptmini.tokenizer import Document as Document
else:
    __getattr__ = lazy_names(__name__)
