"""Assign the documents of a corpus to splits, and report the progress of reading to a watcher."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from gptmini.console.progress import Progress, Watcher
from gptmini.data.corpus import Corpus
from gptmini.data.reading.chat_formats import parse_chat
from gptmini.system.errors import UserError
from gptmini.tokenizer import Document, Tokenizer, plain_text

# The type of a function that builds the tokenizer of a corpus from the documents of the corpus.
BuildTokenizer = Callable[..., Tokenizer]
# Largest accepted relative difference between the held-out fraction and val_fraction.
TOLERANCE = 0.5
LINE = 2**12  # a line of at most this many bytes is never cut, even if the text is short
REPORT_BYTES = 2**20  # bytes of text between two progress reports


class SplitsChanged(Exception):
    """The documents that were read are in the wrong splits. The next reading puts them into the right splits."""


class SplitDocuments:
    """The documents of a corpus. Each document has a split. The documents can be read several times.

    The hash of a document determines its split, unless the corpus gives it a split. If the held-out fraction is then
    far from val_fraction, the first reading raises SplitsChanged at its end. All later readings hold out the end of the
    text instead.
    """

    def __init__(self, corpus: Corpus, watcher: Watcher) -> None:
        self.corpus = corpus
        self._watcher = watcher

    @cached_property
    def boundary(self) -> int | None:
        """Number of UTF-8 bytes before the held-out end of the text. It is None if hashes determine the splits."""
        return self.corpus.boundary()

    def __iter__(self) -> Iterator[Document]:
        """Read the documents for a tokenizer. Like read(), this may raise SplitsChanged."""
        n_bytes = 0
        n_reported = 0
        try:
            for document in self.read():
                text = document.text
                if self.corpus.template is not None:
                    messages, _ = parse_chat(text)
                    text = plain_text(messages)
                yield document._replace(text=text)
                n_bytes += n_bytes_of(document.text)
                if n_bytes - n_reported >= REPORT_BYTES:
                    n_reported = n_bytes
                    self._report("reading for the tokenizer", n_bytes, self.share_read())
        finally:
            # The builder may stop reading before the last document. The builder then works for some time.
            self._report("building the tokenizer", 0, None)

    @property
    def _val_fraction(self) -> float:
        if self.corpus.val_fraction is None:
            raise UserError(
                "a corpus must set val_fraction or give each document a split, got a document without a split"
            )
        return self.corpus.val_fraction

    def read(self) -> Iterator[Document]:
        """Read the documents. At the end, raise SplitsChanged at most once if documents were in the wrong splits."""
        if self.boundary is None:
            yield from self._by_hash()
        else:
            yield from self._by_place(self.boundary)

    def share_read(self) -> float | None:
        """Return the fraction of the text that has been read, from 0 to 1. Builders of tokenizers call this method."""
        return self.corpus.share_read()

    def _report(self, phase: str, n_bytes: int, share: float | None) -> None:
        self._watcher.on_progress(Progress(phase=phase, n_bytes=n_bytes, share=share))

    def _by_hash(self) -> Iterator[Document]:
        """Yield the documents, split by the hash of their first part. At the end, check the held-out fraction."""
        # These numbers count only documents to which the corpus does not give a split.
        n_bytes = {"train": 0, "val": 0}
        n_documents = 0
        split = ""  # the split of the current document
        begins = True  # whether the next part starts a document

        for document in self.corpus.documents():
            if document.split is not None:
                yield document
                continue
            if begins:
                split = split_of(document.text, self._val_fraction)
            begins = document.ends
            n_documents += document.ends
            n_bytes[split] += n_bytes_of(document.text)
            yield document._replace(split=split)

        if n_documents:
            self._check_share(n_bytes["val"], sum(n_bytes.values()), n_documents)

    def _check_share(self, n_held_out: int, n_all: int, n_documents: int) -> None:
        wanted = self._val_fraction
        fraction = n_held_out / max(n_all, 1)
        if abs(fraction - wanted) <= TOLERANCE * wanted and fraction < 1:
            return

        self.boundary = int(n_all * (1 - wanted))
        if n_documents > 1:
            self._watcher.on_note(
                f"holding out the last {100 * wanted:.3g}% of the text, because whole documents would take "
                f"{100 * fraction:.2g}%"
            )
        raise SplitsChanged

    def _by_place(self, boundary: int) -> Iterator[Document]:
        """Yield the documents. Cut a document at the boundary. A chat goes into the training split as a whole."""
        # The start of a long line may be so far before the boundary that too much text would be held out.
        n_held_out = boundary * self._val_fraction / (1 - self._val_fraction)
        longest = max(LINE, int(TOLERANCE * n_held_out))
        # Bytes before the current part. Documents to which the corpus gives a split are not counted.
        position = 0
        for document in self.corpus.documents():
            if document.split is not None:
                yield document
                continue

            n_train = boundary - position
            n_bytes = n_bytes_of(document.text)
            position += n_bytes
            is_across = n_train < n_bytes or (n_train == n_bytes and not document.ends)
            if n_train <= 0:
                yield document._replace(split="val")
            elif not is_across or self.corpus.template:
                yield document._replace(split="train")
            else:
                first, rest = cut_at_line(document.text, n_train, longest)
                yield Document("train", first)
                if rest:
                    yield Document("val", rest, document.ends)


def split_of(text: str, val_fraction: float) -> str:
    """Return the split of a document.

    The split is "val" if the first byte of the SHA-256 digest of the document is below 256 val_fraction. Otherwise the
    split is "train". Only the UTF-8 bytes of the document determine the digest. Therefore a document keeps its split
    when other documents change.
    """
    first_byte = hashlib.sha256(text.encode(errors="replace")).digest()[0]
    return "val" if first_byte < round(256 * val_fraction) else "train"


def build_from(build_tokenizer: BuildTokenizer, documents: Iterable[Document]) -> Tokenizer:
    """Build a tokenizer from documents. If documents were in the wrong splits, build the tokenizer a second time."""
    while True:
        try:
            return build_tokenizer(documents)
        except SplitsChanged:
            continue


def n_bytes_of(text: str) -> int:
    """Return the number of UTF-8 bytes of a text. Raise UnicodeEncodeError for a lone surrogate."""
    return len(text) if text.isascii() else len(text.encode())


def cut_at_line(text: str, n_bytes: int, longest: int) -> tuple[str, str]:
    """Cut a text after the last line break in its first n_bytes UTF-8 bytes.

    If there is no line break in the last `longest` of these bytes, cut after all of them, or after the character that
    contains the last of them.
    """
    data = text.encode()
    place = data.rfind(b"\n", max(0, n_bytes - longest), n_bytes) + 1
    if not place:
        place = n_bytes
        while place < len(data) and data[place] & 0xC0 == 0x80:  # a byte inside a character
            place += 1
    return data[:place].decode(), data[place:].decode()
