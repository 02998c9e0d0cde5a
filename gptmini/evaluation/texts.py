"""The text that models are evaluated on: a split of a prepared folder, or files that need not be prepared.

Both give the ids of their documents under a model's tokenizer, in streams or each document by itself. Of both, about
max_tokens tokens are read, or all for None.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gptmini.data import TextCorpus, TokenStore
from gptmini.data.ids import without_marks
from gptmini.data.store import Excerpt
from gptmini.tokenizer import Tokenizer, before_documents, from_dict, of_ids, without_beginning
from gptmini.user_error import UserError


class PreparedText:
    """A split of a prepared folder."""

    def __init__(self, folder: Path, split: str, max_tokens: int | None) -> None:
        """Open the folder; UserError if it is damaged."""
        self._store = TokenStore(folder)
        self._split = split
        self._max_tokens = max_tokens
        self.name = f"{split} of {self._store.folder}"
        self.notes: list[str] = []

    def streams(self, tokenizer: Tokenizer) -> list[Excerpt]:
        """The ids of each source as prepared; UserError unless they are those of the model's tokenizer."""
        if not self._has_ids_of(tokenizer):
            raise UserError(
                f"{self._store.folder} must hold tokens of the model's own tokenizer, got those of another; --text "
                "takes a text that is not prepared"
            )
        return self._store.excerpts(self._split, self._max_tokens)

    def documents(self, tokenizer: Tokenizer) -> list[np.ndarray]:
        """The ids of each document's text, encoded anew where the model has another tokenizer."""
        if not self._store.has_index:
            raise UserError(
                f"{self._store.folder} does not say where documents end, which --per-document and models with other "
                "tokenizers need; name files of text with --text"
            )
        own = from_dict(self._store.tokenizer_state)
        documents = self._own_documents(own)
        if self._has_ids_of(tokenizer):
            return list(documents)
        return [_encoded(tokenizer, own.decode(ids.tolist())) for ids in documents]

    def _has_ids_of(self, tokenizer: Tokenizer) -> bool:
        """Whether the ids are those of this tokenizer."""
        return of_ids(tokenizer.to_dict()) == of_ids(self._store.tokenizer_state)

    def _own_documents(self, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
        """The ids of each document as prepared, until there are max_tokens, without those that stand around a text."""
        ids = self._store.tokens(self._split)
        start = 0
        n_tokens = 0
        for end in self._store.document_ends(self._split).tolist():
            if self._max_tokens is not None and n_tokens >= self._max_tokens:
                return
            document = without_marks(np.asarray(ids[start:end])).astype(np.int64)
            document = without_beginning(tokenizer, document)
            start = end
            if tokenizer.end_of_text is not None:
                document = document[document != tokenizer.end_of_text]
            if len(document):
                n_tokens += len(document)
                yield document


class _TypedCorpus(TextCorpus):
    """A corpus whose files were named on the command line of gptmini evaluate."""

    path_key = "--text"


class TextFiles:
    """Files of text, which are read into memory and encoded by each model's tokenizer."""

    def __init__(self, paths: Sequence[Path], field: str, max_tokens: int | None) -> None:
        """Read the documents; UserError for a file that cannot be read or holds no text."""
        self.name = ", ".join(str(path) for path in paths)
        self._max_tokens = max_tokens
        # How many documents the first model is evaluated on, and so every other one.
        self._n_documents: int | None = None
        self._texts: list[str] = []

        try:
            # No share is held out: documents() gives all of them.
            corpus = _TypedCorpus([str(path) for path in paths], val_fraction=0.5, field=field)
            parts: list[str] = []
            for document in corpus.documents():
                parts.append(document.text)
                if document.ends:
                    self._texts.append("".join(parts))
                    parts = []
        except UserError as error:
            # The option for data.field has another name, and other keys of a configuration have no option.
            message = error.message.replace("as data.field says", "as --field says")
            raise UserError(message) from None
        self.notes = corpus.notes()

    def streams(self, tokenizer: Tokenizer) -> list[Excerpt]:
        """The ids of all documents in one stream, as a preparation puts them together."""
        before = np.array(before_documents(tokenizer), dtype=np.int64)
        ends = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
        end = np.array(ends, dtype=np.int64)
        pieces = [np.concatenate([before, _encoded(tokenizer, text), end]) for text in self._texts]

        ids = np.concatenate(pieces)
        n_bytes = sum(len(text.encode("utf-8")) for text in self._texts)
        excerpt = Excerpt(
            ids=ids,
            n_tokens=self._max_tokens or len(ids),
            tokens_per_byte=len(ids) / n_bytes,
            document_ends=np.cumsum([len(piece) for piece in pieces]),
        )
        return [excerpt]

    def documents(self, tokenizer: Tokenizer) -> list[np.ndarray]:
        """The ids of each document's text.

        With max_tokens, they are as many documents as hold that many tokens under the first tokenizer that this is
        asked for, so that every model is evaluated on the same documents.
        """
        documents = []
        n_tokens = 0
        for text in self._texts[: self._n_documents]:
            is_enough = self._max_tokens is not None and n_tokens >= self._max_tokens
            if is_enough and self._n_documents is None:
                break
            documents.append(_encoded(tokenizer, text))
            n_tokens += len(documents[-1])
        self._n_documents = len(documents)
        return documents


HeldOutText = PreparedText | TextFiles


def _encoded(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Ids of a text under a tokenizer, int64 (n,); UserError for a character that it does not have."""
    (ids,) = tokenizer.encode_batch([text])
    return ids.astype(np.int64)
