"""A cache of the SHA-256 digests of files, so that a text is not read again to find its prepared folder."""

import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path

from gptmini.system.errors import UserError
from gptmini.system.files import replacing

# Keep only digests of files that are older than this number of seconds. A second change within the time resolution of
# the file system leaves the stamp unchanged, and FAT, the coarsest file system, has a resolution of two seconds.
SETTLING = 2


class Digests:
    """Digests with stamps. A stamp is the size and the times that the file had when it was read."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        # Stamps of the files whose digests this process has requested.
        self._seen: dict[Path, list[int]] = {}
        # The stamp and the digest of the file at each path.
        self._known: dict[str, list] = {}
        with suppress(OSError, ValueError):
            self._known = json.loads(cache.read_bytes())
        self._has_new = False

    def of(self, path: Path) -> str:
        """Return the digest of a file in hexadecimal. Read the file only if its stamp has changed."""
        name = str(path.absolute())
        stamp = self._seen[path] = _stamp(path)
        *known_stamp, digest = self._known.get(name, [None])
        if known_stamp == stamp:
            return digest

        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if max(stamp[1:]) / 1e9 < time.time() - SETTLING and _stamp(path) == stamp:
            self._known[name] = [*stamp, digest]
            self._has_new = True
        return digest

    def check_unchanged(self) -> None:
        """Raise UserError if a file has changed since its digest was requested."""
        for path, stamp in self._seen.items():
            if not path.exists() or _stamp(path) != stamp:
                raise UserError(
                    f"{path} must not change while gptmini reads it, but the file changed; try again"
                )

    def save(self) -> None:
        """Save the digests for later processes."""
        if self._has_new:
            # Another user's folder may not be writable. The next run then reads the files again.
            with suppress(OSError), replacing(self._cache) as file:
                file.write(json.dumps(self._known, indent=0).encode("utf-8"))


def _stamp(path: Path) -> list[int]:
    # A program can set back the modification time (mtime), but not the change time (ctime).
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
