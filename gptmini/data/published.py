"""Texts that others published: downloaded once, and known by their digest."""

import hashlib
import queue
import threading
from pathlib import Path

from pydantic import validate_call

from gptmini.data.corpus import HeldOut
from gptmini.data.text_corpus import TextCorpus
from gptmini.files import replacing
from gptmini.settings import STRICT, FileName
from gptmini.user_error import UserError

# The published texts are of a few megabytes. A larger text, or one that comes more slowly, is had by other means and
# given as a local copy, so that a faulty server can neither fill the memory nor hold up a run for ever.
LARGEST_DOWNLOAD = 100 * 2**20  # bytes
DOWNLOAD_DEADLINE = 600  # seconds in all
DOWNLOAD_TIMEOUT = 30  # seconds without an answer
PIECE = 2**16  # bytes that are read at once


@validate_call(config=STRICT)
def pinned_text(
    *,
    name: FileName,
    url: str,
    sha256: str | None,
    path: str | None,
    folder: str,
    val_fraction: HeldOut,
) -> TextCorpus:
    """One published text: a local copy, or downloaded once.

    Args:
        name: of the text, and of its file in folder.
        url: where it is published.
        sha256: digest of the text, in hexadecimal; None for any text.
        path: a local copy; None for the one in folder, which is downloaded if it is not there.
        folder: keeps what was downloaded.
        val_fraction: share of the text that is held out.

    Raises pydantic.ValidationError: a value that does not fit. Raises UserError: path is not a file, the text is
    another, or the download failed.
    """
    file = download_file(folder, name) if path is None else Path(path).expanduser()
    if path is not None and not file.is_file():
        raise UserError(
            f"data.path must be a file, got {path}, which does not exist or is a folder"
        )

    is_local = file.is_file()
    if is_local:
        data = file.read_bytes()
        source = str(file)
    else:
        data = download(url)
        source = url
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256:
        raise UserError(
            f"{source} must be the published text with sha256 {sha256}, got {digest}; "
            "for a text of your own use data=text with its data.path="
        )

    if not is_local:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as new:
            new.write(data)
    return TextCorpus(file, val_fraction, name)


@validate_call(config=STRICT)
def download_file(folder: str, name: FileName) -> Path:
    """The file in a folder that keeps the text of a name once it is downloaded."""
    return Path(folder).expanduser() / f"{name}.txt"


def download(url: str) -> bytes:
    """What is published at url; UserError says why it could not be had within DOWNLOAD_DEADLINE seconds."""
    outcomes: queue.Queue[bytes | Exception] = queue.Queue()

    def fetch_into_queue() -> None:
        try:
            outcomes.put(_fetch(url))
        except Exception as error:
            outcomes.put(error)

    # A time limit of a socket counts anew from every byte that arrives, so the whole is timed from another thread.
    threading.Thread(target=fetch_into_queue, daemon=True).start()
    try:
        outcome = outcomes.get(timeout=DOWNLOAD_DEADLINE)
    except queue.Empty:
        raise _no_download(url, f"it took longer than {DOWNLOAD_DEADLINE} seconds") from None
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _fetch(url: str) -> bytes:
    """Read what is published at url; UserError if it cannot be reached, or is larger than LARGEST_DOWNLOAD bytes."""
    # Imported here, because they take a tenth of a second, which a run without a download need not spend.
    import http.client
    import urllib.request
    from urllib.error import URLError

    data = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as answer:
            while piece := answer.read(PIECE):
                data += piece
                if len(data) > LARGEST_DOWNLOAD:
                    raise URLError(f"it is larger than {LARGEST_DOWNLOAD:,} bytes")
            n_missing = getattr(answer, "length", None)  # of an answer that told its length
            if n_missing:
                raise URLError(f"it ended {n_missing:,} bytes too soon")
    # OSError is the base of urllib's own errors; ValueError is what urllib raises for a text that is no address.
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or repr(error)
        raise _no_download(url, str(reason)) from None
    return bytes(data)


def _no_download(url: str, reason: str) -> UserError:
    """The error that a text could not be had from url."""
    return UserError(f"could not download {url} ({reason}); give a local copy with data.path=")
