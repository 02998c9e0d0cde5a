"""Texts at addresses such as https://host/book.txt. A text is downloaded once, and again if the server changed it."""

import hashlib
import json
import shlex
import time
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from gptmini.console.printing import print_note
from gptmini.console.terminal import INTERVAL
from gptmini.data.reading.opening import BLOCK
from gptmini.data.reading.paths import Paths, refuse_ending
from gptmini.system.errors import UserError
from gptmini.system.files import encodable, is_address, name_of_address, replacing

SCHEMES = ("http", "https", "hf", "s3")
# Seconds without a response. fsspec asks a silent HTTP server twice, for a minute in all.
DOWNLOAD_TIMEOUT = 30
# The starts of documents that are not text, with the extensions by which they are refused. EPUB and DOCX files are ZIP
# files.
STARTS = {b"%PDF": ".pdf", b"PK\x03\x04": ".epub"}
WEB_PAGE = (b"<!doctype html", b"<html")
CONVERT = "pandoc --from=html --to=plain --output=text.txt {file}"
# What servers and the hub say about the version of a file, by fsspec's names.
VERSION = ("size", "ETag", "Last-Modified", "blob_id")


def local_paths(key: str, paths: Paths, folder: str, *, may_download: bool) -> list[str | Path]:
    """Return the paths with a copy in `folder` in place of each address. Download a text that is missing or changed.

    Without may_download, no server is contacted. The key names the configuration key in error messages.

    Raises UserError if an address is not supported, or if a text has no copy and cannot or must not be downloaded.
    """
    path_list = paths if isinstance(paths, list) else [paths]
    return [
        _local_copy(key, str(path), folder, may_download) if is_address(str(path)) else path
        for path in path_list
    ]


def missing_text_error(what: str) -> UserError:
    """Return the error for a missing text that only a run folder names. This folder may come from somebody else."""
    return UserError(
        f"{what} is missing, and only a run folder names it; "
        "if you trust the run, download the text with gptmini prepare"
    )


def _local_copy(key: str, address: str, folder: str, may_download: bool) -> Path:
    scheme, _, rest = address.partition("://")
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        starts = ", ".join(f"{name}://" for name in SCHEMES)
        raise UserError(f"{key} must be a path or start with {starts}, got {scheme}://")
    if "@" in rest.partition("/")[0]:
        raise UserError(
            f"{key} must not contain a password, because the run stores it; write it into ~/.netrc"
        )

    name = name_of_address(address)
    refuse_ending(key, Path(name), "download the file, and ")
    digest = hashlib.sha256(encodable(address).encode()).hexdigest()[:12]
    file = Path(folder).expanduser() / f"{name.partition('.')[0]}-{digest}" / name
    if not may_download:
        if not file.is_file():
            raise missing_text_error(f"the text {address}")
        return file

    try:
        _update(key, scheme, address, file)
    except UserError:
        raise
    except Exception as error:  # each library of fsspec has error classes of its own
        # An error of the disk names a file in the folder.
        failed_file = getattr(error, "filename", None) or ""
        if Path(failed_file).is_relative_to(file.parent.parent):
            raise
        failure = f"cannot download {address} ({_reason(error)})"
        if not file.is_file():
            raise UserError(f"{failure}; check the address, or give a file") from None
        print_note(f"warning: {failure}; using the copy {file}")
    return file


def _update(key: str, scheme: str, address: str, file: Path) -> None:
    """Download a text, unless `file` is a copy of its present version. If an error is raised, `file` is unchanged."""
    system = _file_system(scheme)
    info = system.info(address)
    if info["type"] != "file":
        raise IsADirectoryError("it is a folder")
    version = json.dumps({name: info.get(name) for name in VERSION}).encode()
    path_of_version = file.with_name("version.json")
    has_copy = file.is_file() and path_of_version.is_file()
    if has_copy and path_of_version.read_bytes() == version:
        return

    size = info.get("size")
    shown_size = "unknown size" if size is None else f"{size / 1e6:,.1f} MB"
    print_note(f"downloading {address}, {shown_size}")
    file.parent.mkdir(parents=True, exist_ok=True)
    n_bytes = 0
    printed_at = time.monotonic()
    # Without a block size, the bytes arrive in one response. s3fs has no such mode.
    options = {} if scheme == "s3" else {"block_size": 0}
    with replacing(file) as new, system.open(address, **options) as source:
        while (size is None or n_bytes <= size) and (block := source.read(BLOCK)):
            if n_bytes == 0:
                _check_start(key, block, file)
            n_bytes += new.write(block)
            if time.monotonic() - printed_at >= INTERVAL:
                printed_at = time.monotonic()
                print_note(f"downloading: {n_bytes / 1e6:,.1f} MB of {shown_size}")
        if size not in (None, n_bytes):
            raise EOFError(f"the server promised {size:,} bytes and sent {n_bytes:,}")
    with replacing(path_of_version) as new:
        new.write(version)


def _check_start(key: str, block: bytes, file: Path) -> None:
    """Raise UserError if a document is not text although its address does not say so. Warn of a web page."""
    for start, ending in STARTS.items():
        if block.startswith(start):
            refuse_ending(key, Path(file.name).with_suffix(ending), "download the file, and ")
    if block.lstrip().lower().startswith(WEB_PAGE):
        command = CONVERT.format(file=shlex.quote(str(file)))
        print_note(f"warning: this is a web page, and its tags are trained on, too; run: {command}")


def _file_system(scheme: str) -> Any:
    import fsspec

    options: dict[str, Any] = {}
    if scheme in ("http", "https"):
        import aiohttp

        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_check_redirect)
        options["headers"] = {"Accept-Encoding": "identity"}
        options["client_kwargs"] = {
            "auto_decompress": False,  # a file keeps its own compression
            "trust_env": True,  # proxies of the environment, and passwords in ~/.netrc
            "trace_configs": [tracing],
            "timeout": aiohttp.ClientTimeout(
                sock_connect=DOWNLOAD_TIMEOUT, sock_read=DOWNLOAD_TIMEOUT
            ),
        }
    # A cached instance may store an old version of the file.
    return fsspec.filesystem(scheme, skip_instance_cache=True, **options)


async def _check_redirect(session: Any, context: Any, redirect: Any) -> None:
    """Raise ConnectionError if a server redirects to another scheme. Only https:// in place of http:// is allowed."""
    source = str(redirect.url)
    target = urlsplit(urljoin(source, redirect.response.headers.get("Location", "")))
    if target.scheme not in ("https", urlsplit(source).scheme):
        raise ConnectionError(f"it redirects to {target.scheme}://{target.netloc}")


def _reason(error: Exception) -> str:
    # For HTTP, fsspec raises FileNotFoundError for every error.
    is_vague = isinstance(error, FileNotFoundError) and error.__cause__ is not None
    origin = error.__cause__ if is_vague else error
    message = getattr(origin, "message", str(origin)) or type(origin).__name__
    return " ".join(f"{getattr(origin, 'status', '')} {message}".split())
