"""The text that models are evaluated on: a split of a prepared folder, or plain text files.

PreparedText and TextFiles return the ids of a model's tokenizer, with the documents in a row or one by one. Each class
reads about max_tokens tokens. If max_tokens is None, all tokens are read.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gptmini.data import Excerpt, TextCorpus, TokenStore, without_marks
from gptmini.system.errors import UserError
from gptmini.tokenizer import Tokenizer, document_prefix, identity_of, without_prefix


class PreparedText:
    """A split of a prepared folder."""

    def __init__(self, folder: Path, split: str, max_tokens: int | None) -> None:
        self._store = TokenStore(folder)
        self._split = split
        self._max_tokens = max_tokens
        self.name = f"{split} of {self._store.folder}"
        self.notes: list[str] = []

    def excerpts(self, tokenizer: Tokenizer) -> list[Excerpt]:
        """Return the prepared ids of each source. Raise UserError if the folder has ids of a different tokenizer."""
        if not self._has_ids_of(tokenizer):
            raise UserError(
                f"{self._store.folder} was prepared with a different tokenizer than the model; "
                "give plain text files with --text"
            )
        return self._store.excerpts(self._split, self._max_tokens)

    def documents(self, tokenizer: Tokenizer) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the ids of the text of each document, and its UTF-8 bytes, (n_documents,).

        Encode the text if the model has a different tokenizer.
        """
        if not self._store.has_index:
            raise UserError(
                f"{self._store.folder} does not store where documents end, which --per-document and models with "
                "different tokenizers require; give plain text files with --text"
            )
        preparer = self._store.tokenizer  # of the folder, not of the model
        documents = list(self._prepared_documents(preparer))
        texts = [
            preparer.decode(ids.tolist()).removeprefix(preparer.prefix_text) for ids in documents
        ]
        lengths = np.array([len(text.encode()) for text in texts])
        if self._max_tokens is None:  # the tokenizer may have changed the text, for example to NFC
            lengths = lengths * (self._store.n_bytes(self._split) / lengths.sum())
        if not self._has_ids_of(tokenizer):
            documents = [_encode(tokenizer, text) for text in texts]
        return documents, lengths

    def _has_ids_of(self, tokenizer: Tokenizer) -> bool:
        return identity_of(tokenizer.to_dict()) == identity_of(self._store.tokenizer_state)

    def _prepared_documents(self, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
        """Yield the prepared ids of each document, without special tokens, until there are max_tokens ids."""
        ids = self._store.tokens(self._split)
        start = 0
        n_tokens = 0
        for end in self._store.document_ends(self._split).tolist():
            if self._max_tokens is not None and n_tokens >= self._max_tokens:
                return
            document = without_marks(np.asarray(ids[start:end])).astype(np.int64)
            document = without_prefix(tokenizer, document)
            start = end
            if tokenizer.end_of_text is not None:
                document = document[document != tokenizer.end_of_text]
            if len(document):
                n_tokens += len(document)
                yield document


class _EvaluatedCorpus(TextCorpus):
    path_key = "--text"  # errors name this option of gptmini evaluate


class TextFiles:
    """Text files that are read into memory and encoded by the tokenizer of each model."""

    def __init__(self, paths: Sequence[str | Path], field: str, max_tokens: int | None) -> None:
        self.name = ", ".join(str(path) for path in paths)
        self._max_tokens = max_tokens
        # Number of documents that the first model is evaluated on; all other models use the same number.
        self._n_evaluated: int | None = None
        self._texts: list[str] = []

        try:
            # documents() returns all documents, so val_fraction has no effect.
            corpus = _EvaluatedCorpus([str(path) for path in paths], val_fraction=0.5, field=field)
            parts: list[str] = []
            for document in corpus.documents():
                parts.append(document.text)
                if document.ends:
                    self._texts.append("".join(parts))
                    parts = []
        except UserError as error:
            # In this command, the key data.field is the option --field.
            message = error.message.replace("data.field", "--field")
            raise UserError(message) from None
        self.notes = corpus.notes()

    def excerpts(self, tokenizer: Tokenizer) -> list[Excerpt]:
        """Return the ids of all documents in a row, in the layout of prepared tokens."""
        before = np.array(document_prefix(tokenizer), dtype=np.int64)
        ends = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
        end = np.array(ends, dtype=np.int64)
        pieces = [np.concatenate([before, _encode(tokenizer, text), end]) for text in self._texts]

        ids = np.concatenate(pieces)
        n_bytes = sum(len(text.encode("utf-8")) for text in self._texts)
        excerpt = Excerpt(
            ids=ids,
            n_tokens=self._max_tokens or len(ids),
            tokens_per_byte=len(ids) / n_bytes,
            document_ends=np.cumsum([len(piece) for piece in pieces]),
        )
        return [excerpt]

    def documents(self, tokenizer: Tokenizer) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the ids of the text of each document, and its UTF-8 bytes, (n_documents,).

        If max_tokens is set, the first call chooses the smallest number of documents with max_tokens tokens under its
        tokenizer. Later calls return the same documents, so that all models are evaluated on the same text.
        """
        documents = []
        n_tokens = 0
        for text in self._texts[: self._n_evaluated]:
            is_enough = self._max_tokens is not None and n_tokens >= self._max_tokens
            if is_enough and self._n_evaluated is None:
                break
            documents.append(_encode(tokenizer, text))
            n_tokens += len(documents[-1])
        self._n_evaluated = len(documents)
        texts = self._texts[: self._n_evaluated]
        return documents, np.array([len(text.encode()) for text in texts])


HeldOutText = PreparedText | TextFiles


def _encode(tokenizer: Tokenizer, text: str) -> np.ndarray:
    (ids,) = tokenizer.encode_batch([text])
    return ids.astype(np.int64)  # (n,)
