"""The recipe of prepared tokens.

A recipe describes the files, the split and the tokenizer that determine the tokens. A recipe also has a fingerprint.
"""

import hashlib
import json
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gptmini.data.corpus import Corpus
from gptmini.data.meta import FORMAT, digest_of_json
from gptmini.data.splits import BuildTokenizer
from gptmini.files import replacing
from gptmini.user_error import UserError

# Do not keep the digest of a file that changed less than this number of seconds ago. If the file changes a second time
# within the time resolution of the file system, its stamp stays the same. The file system FAT has the coarsest time
# resolution, which is two seconds.
SETTLING = 2


class Recipe(NamedTuple):
    """The description of everything that determines the prepared tokens, and the folder of the tokens."""

    contents: dict  # the format, the source, the builder and the fingerprint, as in meta.json
    folder: Path
    digests: "Digests"  # digests of the text files


def plan_recipe(corpus: Corpus, build_tokenizer: BuildTokenizer, root: str | Path) -> Recipe:
    """Compute the fingerprint and the folder for a corpus and a tokenizer. Create root if it is missing.

    Raises UserError if a file of the text cannot be read.
    """
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    builder = partial(
        build_tokenizer
    )  # a partial of a partial has the function of the inner partial
    kind = builder.func.__name__

    digests = Digests(root / ".digests.json")
    contents: dict = {
        "format": FORMAT,
        "source": {"corpus": corpus.name, **corpus.identity(digests.of)},
        "builder": {"name": kind, **builder.keywords},
    }
    digests.save()
    contents["fingerprint"] = digest_of_json(contents)
    folder = _folder_of(root, corpus.folder_name, f"{kind}-{contents['fingerprint'][:12]}")
    return Recipe(contents, folder, digests)


def _folder_of(root: Path, name: str, ending: str) -> Path:
    """Return the prepared folder in root whose name ends with the tokenizer and the fingerprint.

    The folder may begin with another name than `name`, because the text was renamed, or because an earlier version of
    gptmini prepared it. If no such folder exists, return the folder of an interrupted preparation, or a new folder.
    """
    folder = root / f"{name}-{ending}"
    if folder.exists():
        return folder
    complete = sorted(root.glob(f"[!.]*-{ending}"))
    interrupted = sorted(root.glob(f".*-{ending}.parts"))
    named_before = [path.name.removeprefix(".").removesuffix(".parts") for path in interrupted]
    return next(iter([*complete, *(root / name for name in named_before)]), folder)


class Digests:
    """A cache of the SHA-256 digests of files.

    The cache stores each digest with a stamp. The stamp is the size and the times that the file had when it was read.
    """

    def __init__(self, cache: Path) -> None:
        """Load the digests that an earlier process saved in the file `cache`, if it exists."""
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
            # If the folder is not writable (for example, it belongs to another user), the next run reads the files
            # again.
            with suppress(OSError), replacing(self._cache) as file:
                file.write(json.dumps(self._known, indent=0).encode("utf-8"))


def _stamp(path: Path) -> list[int]:
    """Return the size of a file in bytes, and the modification time and the change time in nanoseconds.

    A program can set back the modification time (mtime), but not the change time (ctime).
    """
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
