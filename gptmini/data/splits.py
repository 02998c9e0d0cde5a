"""The documents of a corpus as a preparation reads them: each in its split, while a watcher is told how far that is."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from gptmini.data.corpus import Corpus, Document, split_of
from gptmini.tokenizer import Tokenizer
from gptmini.user_error import UserError

# Makes the tokenizer of a corpus, which it is called with the documents of.
BuildTokenizer = Callable[..., Tokenizer]
# A share of held-out text that differs from val_fraction by more than this part of it is not near enough.
TOLERANCE = 0.5
LINE = 2**12  # bytes of a line that is held out whole, however short the text is
TELLING = 2**20  # bytes of text between two words on the progress


@dataclass(kw_only=True)
class Progress:
    """How far a preparation is."""

    phase: str  # what is being done
    n_bytes: int  # bytes that are done in this phase
    # Of the text that is done in this phase, from 0 to 1; None if that is not known.
    share: float | None


@dataclass(kw_only=True)
class Watcher:
    """Functions that are called with what happens."""

    on_progress: Callable[[Progress], None] = lambda progress: None  # again and again
    on_note: Callable[[str], None] = lambda note: None  # a line that a user should read


class BeginAgain(Exception):
    """The documents that were read are in the wrong splits; those of the next reading are in the right ones."""


class SplitDocuments:
    """The documents of a corpus, each in its split; they can be read several times.

    A document without a split goes by its hash. Where a whole reading shows that hashes hold out a share of the text
    that is not near val_fraction, BeginAgain is raised at its end, and from then on the last share of the text is held
    out.
    """

    def __init__(self, corpus: Corpus, watcher: Watcher) -> None:
        """Take a corpus, and who is told how far it is read by the builder of a tokenizer."""
        self.corpus = corpus
        self._watcher = watcher

    @cached_property
    def boundary(self) -> int | None:
        """UTF-8 bytes of text before what is held out; None where hashes decide."""
        return self.corpus.boundary()

    def __iter__(self) -> Iterator[Document]:
        """Read the documents for a tokenizer; BeginAgain as in read."""
        n_bytes = 0
        told = 0
        try:
            for document in self.read():
                yield document
                n_bytes += n_bytes_of(document.text)
                if n_bytes - told >= TELLING:
                    told = n_bytes
                    self._tell("reading for the tokenizer", n_bytes, self.share_read())
        finally:
            # The builder has what it wants, perhaps before the last document; what it does then takes its time.
            self._tell("building the tokenizer", 0, None)

    @property
    def _val_fraction(self) -> float:
        """The share of the text that is held out."""
        if self.corpus.val_fraction is None:
            raise UserError(
                "a corpus must have val_fraction, or give each document a split, and has neither"
            )
        return self.corpus.val_fraction

    def read(self) -> Iterator[Document]:
        """Read the documents; BeginAgain at the end, once at most, if they were in the wrong splits."""
        if self.boundary is None:
            yield from self._by_hash()
        else:
            yield from self._by_place(self.boundary)

    def share_read(self) -> float | None:
        """Share of the text that the present reading has come to, from 0 to 1; None if that is not known."""
        return self.corpus.share_read()

    def _tell(self, phase: str, n_bytes: int, share: float | None) -> None:
        """Tell the watcher how far a phase is."""
        self._watcher.on_progress(Progress(phase=phase, n_bytes=n_bytes, share=share))

    def _by_hash(self) -> Iterator[Document]:
        """Documents that go by the hash of their first part, counted."""
        # Of the documents without a split of their own.
        n_bytes = {"train": 0, "val": 0}
        n_documents = 0
        split = ""  # of the present document
        begins = True  # whether the next part begins a document

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
        """Raise BeginAgain if the bytes that are held out, of all, are not near val_fraction."""
        wanted = self._val_fraction
        share = n_held_out / max(n_all, 1)
        if abs(share - wanted) <= TOLERANCE * wanted and share < 1:
            return

        self.boundary = int(n_all * (1 - wanted))
        if n_documents > 1:
            self._watcher.on_note(
                f"the last {100 * wanted:.3g}% of the text is held out, which may cut a document in two, because whole "
                f"documents, chosen by hash, would be {100 * share:.2g}%"
            )
        raise BeginAgain

    def _by_place(self, boundary: int) -> Iterator[Document]:
        """Documents before and behind the boundary; a text that lies across it becomes two, a chat is trained on."""
        # A line may be so long that too much would be held out from its beginning on.
        n_held_out = boundary * self._val_fraction / (1 - self._val_fraction)
        longest = max(LINE, int(TOLERANCE * n_held_out))
        position = 0  # bytes before the part, without those of documents with a split of their own
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


def build_from(build_tokenizer: BuildTokenizer, documents: Iterable[Document]) -> Tokenizer:
    """Build the tokenizer of documents, again if they were in the wrong splits."""
    while True:
        try:
            return build_tokenizer(documents)
        except BeginAgain:
            continue


def n_bytes_of(text: str) -> int:
    """UTF-8 bytes of a text; UnicodeEncodeError for a lone surrogate, which has none."""
    return len(text) if text.isascii() else len(text.encode())


def cut_at_line(text: str, n_bytes: int, longest: int) -> tuple[str, str]:
    """Cut a text at the beginning of the line that its UTF-8 byte n_bytes, from 1, lies in.

    If that line begins more than `longest` bytes before, the text is cut there, or behind the character there.
    """
    data = text.encode()
    place = data.rfind(b"\n", max(0, n_bytes - longest), n_bytes) + 1
    if not place:
        place = n_bytes
        while place < len(data) and data[place] & 0xC0 == 0x80:  # a byte inside a character
            place += 1
    return data[:place].decode(), data[place:].decode()
