"""Texts that are published on the web. gptmini downloads each text once and checks its digest."""

import hashlib
import http.client
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from pydantic import validate_call

from gptmini.data.corpus import Corpus, DigestOf, HeldOut
from gptmini.data.reading.cutting import in_parts
from gptmini.data.reading.downloads import DOWNLOAD_TIMEOUT, missing_text_error
from gptmini.data.reading.opening import decoded, open_text
from gptmini.settings import STRICT, FileName
from gptmini.system.errors import UserError
from gptmini.system.files import replacing
from gptmini.tokenizer import Document


class PublishedText(Corpus):
    """A published text in UTF-8. The last characters of the text are held out, as in nanoGPT."""

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
        """Find a local copy of the text, or download it. configs/data/shakespeare.yaml describes the arguments.

        may_download is False if url and folder come from a stored run and not from the command line.

        Raises pydantic.ValidationError for an invalid value. Raises UserError if the text has a different digest
        than sha256, or if the text cannot or must not be downloaded. Raises OSError if path cannot be read.
        """
        self.name = name
        self.fraction_held_out = val_fraction
        self.file = Path(folder if path is None else path).expanduser()
        if path is None:
            self.file /= f"{name}.txt"

        is_new = path is None and not self.file.is_file()
        if is_new and not may_download:
            raise missing_text_error(f"the text {name}")
        data = download(url) if is_new else self.file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if sha256 is not None and digest != sha256:
            raise UserError(
                f"{url if is_new else self.file} must have SHA-256 {sha256}, got {digest}; "
                "for your own text, use data=text data.path=FILE"
            )
        if is_new:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.file) as new:
                new.write(data)

    def identity(self, digest_of: DigestOf) -> dict:
        """Return the digest and the split rule of the text."""
        return {"file": digest_of(self.file), "val_fraction": self.fraction_held_out}

    def documents(self) -> Iterator[Document]:
        """Yield the training text and the held-out text, each in parts of bounded size."""
        with open_text(self.file, "utf-8") as file:
            text = "".join(decoded(file))
        boundary = int(len(text) * (1 - self.fraction_held_out))
        splits = [Document("train", text[:boundary]), Document("val", text[boundary:])]
        yield from in_parts(splits, self.file)


def download(url: str) -> bytes:
    """Return the bytes at the address url. Raise UserError if the download fails."""
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as response:
            return response.read()
    # urllib's own errors are OSErrors. urllib raises ValueError if the url is not an address.
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or repr(error)
        raise UserError(
            f"cannot download {url} ({reason}); give a local copy with data.path=FILE"
        ) from None
