"""Texts that others published: downloaded once, and known by their digest."""

import hashlib
from pathlib import Path

from gptmini.checks import UserError, file_name, text
from gptmini.data.corpus import TextCorpus, check_fraction
from gptmini.files import replacing

DOWNLOAD_TIMEOUT = 30  # seconds without an answer; a text of a few megabytes takes less in all


def pinned_text(
    name: str, url: str, sha256: str | None, path: str | None, folder: str, val_fraction: float
) -> TextCorpus:
    """One published text, of a known SHA-256 (None: any): a local copy, or downloaded once into folder.

    Raises UserError: val_fraction is out of range, path is not a file, the text is another, or the download failed.
    """
    check_fraction(val_fraction)
    file_name("data.name", name)
    text("data.url", url)
    if "\0" in text("data.folder", folder):
        raise UserError(f"data.folder must be the name of a folder, got {folder!r}")

    file = Path(folder) / f"{name}.txt" if path is None else Path(str(path))
    if path is not None and not file.is_file():
        raise UserError(f"data.path must be a file, got {path}, which does not exist or is a folder")

    here = file.is_file()
    data = file.read_bytes() if here else download(url)
    if sha256 not in (None, digest := hashlib.sha256(data).hexdigest()):
        raise UserError(
            f"{file if here else url} must be the published text with sha256 {sha256}, got {digest}; "
            "for a text of your own use data=text with its data.path="
        )

    if not here:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as new:
            new.write(data)
    return TextCorpus(file, val_fraction, name)


def download(url: str) -> bytes:
    """What is published at url; UserError says why it could not be had."""
    import http.client  # these take a tenth of a second, which a run without a download need not spend
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as answer:
            return answer.read()
    # OSError is the base of urllib's own errors; a ValueError is of what is no address.
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or repr(error)
        raise UserError(f"could not download {url} ({reason}); give a local copy with data.path=") from None
