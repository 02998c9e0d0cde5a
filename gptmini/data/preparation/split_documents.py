"""The documents of a corpus, each with its split."""

from collections.abc import Iterator

from gptmini.data.corpus import Corpus, Document, check_document
from gptmini.data.preparation.splits import Census, Rule
from gptmini.data.preparation.watching import Progress, Watcher
from gptmini.user_error import UserError

TELLING = 2**20  # bytes of text between two words on the progress


class SplitDocuments:
    """The documents of a corpus, each with its split, as the builder of a tokenizer is given them."""

    def __init__(self, corpus: Corpus, watcher: Watcher | None = None) -> None:
        """Take a corpus, and who is told how far it is read."""
        self._corpus = corpus
        self._watcher = watcher or Watcher()
        self._rule: Rule | None = None

    def __iter__(self) -> Iterator[Document]:
        """Read the documents; the first time, they are read once more, to find where they belong."""
        if self._rule is None:
            census = Census()
            for document in self._watched("reading"):
                census.count(document)
            self._rule = rule_for(self._corpus, census)

        try:
            yield from self._rule.apply(self._watched("reading for the tokenizer"))
        finally:
            # The builder has what it wants, perhaps before the last document. What it does then takes its time, and
            # nothing can be told of it.
            self._tell("building the tokenizer", 0, None)

    def _watched(self, phase: str) -> Iterator[Document]:
        """Read the documents, telling about once for each megabyte how far that is."""
        n_bytes = 0
        told = 0
        for document in self._corpus.documents():
            check_document(document)
            yield document
            n_bytes += len(document.text.encode(errors="replace"))
            if n_bytes - told >= TELLING:
                told = n_bytes
                self._tell(phase, n_bytes, share_read(self._corpus))

    def _tell(self, phase: str, n_bytes: int, share: float | None) -> None:
        """Tell the watcher how far a phase is."""
        self._watcher.on_progress(Progress(phase=phase, n_bytes=n_bytes, share=share))


def rule_for(corpus: Corpus, census: Census) -> Rule:
    """Where the documents of a corpus that have no split go, given their counts."""
    if not census.n_documents:
        return Rule(threshold=0, boundary=None, note=None)
    val_fraction = getattr(corpus, "val_fraction", None)
    if val_fraction is None:
        raise UserError(
            "a corpus must have val_fraction, or give each document a split, and has neither"
        )
    return census.rule(val_fraction)


def share_read(corpus: Corpus) -> float | None:
    """Share of a corpus's text that has been read, from 0 to 1; None for a corpus that does not tell."""
    tell = getattr(corpus, "share_read", None)
    return None if tell is None else tell()
