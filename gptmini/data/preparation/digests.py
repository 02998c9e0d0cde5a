"""Digests of files, kept from one start to the next, so that the text of a prepared run is not read again."""

import codecs
import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path

from gptmini.files import replacing
from gptmini.user_error import UserError

# Seconds after a file's last change in which its digest is not kept: a later change within the file system's
# resolution of time would leave the stamp as it is. FAT has the coarsest, two seconds.
SETTLING = 2
LARGEST_CACHE = 100_000  # files; a cache of more begins anew


class Stamp(tuple):
    """What tells that a file is as it was: size in bytes, inode, and the times of its last changes in nanoseconds.

    The first time is that of the content, which a program can set back; the second, which no program can set, is that
    of anything about the file.
    """

    @classmethod
    def of(cls, path: Path) -> "Stamp":
        """The stamp of a file as it is now."""
        status = path.stat()
        return cls((status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns))


class Digests:
    """The SHA-256 digests of files, each with the stamp that the file had when it was read."""

    def __init__(self, cache: Path) -> None:
        """Take over the digests that an earlier process kept in the file `cache`, which need not exist."""
        self._cache = cache
        self._known: dict[str, tuple[Stamp, str]] = {}
        self._seen: dict[Path, Stamp] = {}  # files that this process has asked for
        self._has_new = False
        # A file that is not there, or not as save() wrote it, is made anew.
        with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            for name, (*numbers, digest) in json.loads(cache.read_text(encoding="utf-8")).items():
                self._known[name] = (Stamp(numbers), digest)

    def digest_of(self, path: Path) -> str:
        """Digest of a file, in hexadecimal: read now, or known from its stamp."""
        name = str(path.absolute())
        stamp = Stamp.of(path)
        self._seen[path] = stamp
        known = self._known.get(name)
        if known is not None and known[0] == stamp and isinstance(known[1], str):
            return known[1]

        digest = sha256_of(path)
        changed_at = max(stamp[-2:])
        if changed_at / 1e9 < time.time() - SETTLING and Stamp.of(path) == stamp:
            self._known[name] = (stamp, digest)
            self._has_new = True
        return digest

    def check_unchanged(self) -> None:
        """Raise UserError if a file is no longer as it was when its digest was asked for."""
        for path, stamp in self._seen.items():
            if not path.exists() or Stamp.of(path) != stamp:
                raise UserError(
                    f"{path} must stay as it is while it is read, and it was changed; try again"
                )

    def save(self) -> None:
        """Keep the digests for the next process."""
        if not self._has_new:
            return
        if len(self._known) > LARGEST_CACHE:
            seen = {str(path.absolute()) for path in self._seen}
            self._known = {name: self._known[name] for name in seen if name in self._known}
        rows = {name: [*stamp, digest] for name, (stamp, digest) in self._known.items()}
        # Where the folder cannot be written, as that of another user, files are read again at the next start.
        with suppress(OSError), replacing(self._cache) as file:
            file.write(json.dumps(rows, indent=0).encode("utf-8"))
        self._has_new = False


def begins_with_mark(path: Path) -> bool:
    """Whether a file begins with the byte order mark of UTF-8."""
    with path.open("rb") as file:
        return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


def sha256_of(path: Path) -> str:
    """Digest of a file, in hexadecimal, without the UTF-8 byte order mark that is no part of its text."""
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()
