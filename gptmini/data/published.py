"""Texts that others published: downloaded once, and known by their digest."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import validate_call

from gptmini.data.corpus import Corpus, DigestOf, Document, HeldOut
from gptmini.data.opening import decoded, opened
from gptmini.data.pieces import Piece, in_pieces
from gptmini.files import replacing
from gptmini.settings import STRICT, FileName
from gptmini.user_error import UserError

DOWNLOAD_TIMEOUT = 30  # seconds without an answer


class PublishedText(Corpus):
    """One text in UTF-8, whose last share of characters is held out, as nanoGPT does."""

    @validate_call(config=STRICT)
    def __init__(
        self,
        *,
        name: FileName,
        url: str,
        sha256: str | None,
        path: str | None,
        folder: str,
        val_fraction: HeldOut,
        may_download: bool = True,
    ) -> None:
        """Find a local copy of the text, or download it.

        Args:
            name: of the text, and of its file in folder.
            url: where it is published.
            sha256: digest of the text, in hexadecimal; None for any text.
            path: a local copy; None for the one in folder, which is downloaded if it is not there.
            folder: keeps what was downloaded.
            val_fraction: share of the characters that is held out.
            may_download: False where nobody has typed url and folder.

        Raises pydantic.ValidationError: a value that does not fit. Raises UserError: the text is another, or it cannot
        or may not be downloaded. Raises OSError: path cannot be read.
        """
        self.name = name
        self.held_out = val_fraction
        self.file = Path(folder if path is None else path).expanduser()
        if path is None:
            self.file /= f"{name}.txt"

        is_new = path is None and not self.file.is_file()
        if is_new and not may_download:
            raise only_stored(f"the text {name}")
        data = download(url) if is_new else self.file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if sha256 is not None and digest != sha256:
            raise UserError(
                f"{url if is_new else self.file} must be the published text with sha256 {sha256}, got {digest}; "
                "for a text of your own use data=text with its data.path="
            )
        if is_new:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.file) as new:
                new.write(data)

    def identity(self, digest_of: DigestOf) -> dict:
        """Name, digest and split rule of the text."""
        return {
            "corpus": self.name,
            "file": digest_of(self.file),
            "val_fraction": self.held_out,
        }

    def documents(self) -> Iterator[Document]:
        """Yield the training text and the held-out text, each in parts of bounded size."""
        with opened(self.file, "utf-8") as bytes_of_text:
            text = "".join(decoded(bytes_of_text, self.file))
        boundary = int(len(text) * (1 - self.held_out))
        for split, part in (("train", text[:boundary]), ("val", text[boundary:])):
            for piece in in_pieces(iter([Piece(part, ends=True)]), self.file):
                yield Document(split, piece.text, piece.ends)


def download(url: str) -> bytes:
    """What is published at url; UserError if it cannot be had."""
    # Imported here, because they take a tenth of a second, which a run without a download need not spend.
    import http.client
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as answer:
            return answer.read()
    # OSError is the base of urllib's own errors; ValueError is what urllib raises for a text that is no address.
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or repr(error)
        raise UserError(
            f"could not download {url} ({reason}); give a local copy with data.path="
        ) from None


def only_stored(what: str) -> UserError:
    """The error that a text is not there, and that nobody has typed from where it is to be had."""
    return UserError(
        f"{what} must be downloaded again, and only the run's folder says from where; if you know the text, prepare it "
        "first, by gptmini prepare with what was typed for the run"
    )
