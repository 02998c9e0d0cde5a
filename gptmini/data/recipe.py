"""What prepared tokens follow from: the files of a text, the split and the tokenizer, with a fingerprint of all."""

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

# Seconds after a file's last change in which its digest is not kept: a later change within the file system's
# resolution of time would leave the stamp as it is. FAT has the coarsest, two seconds.
SETTLING = 2


class Recipe(NamedTuple):
    """What prepared tokens follow from, and where they belong."""

    contents: dict  # format, source, builder, and their fingerprint, as meta.json holds them
    folder: Path
    digests: "Digests"  # of the files of the text


def plan_recipe(corpus: Corpus, build_tokenizer: BuildTokenizer, root: str | Path) -> Recipe:
    """Find out what the tokens of a corpus under a tokenizer follow from; root is made if it is not there.

    Raises UserError: a file of the text cannot be read.
    """
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    builder = partial(build_tokenizer)  # which is the same for a partial
    kind = builder.func.__name__

    digests = Digests(root / ".digests.json")
    contents: dict = {
        "format": FORMAT,
        "source": {"corpus": corpus.name, **corpus.identity(digests.of)},
        "builder": {"name": kind, **builder.keywords},
    }
    digests.save()
    contents["fingerprint"] = digest_of_json(contents)
    folder = root / f"{corpus.name}-{kind}-{contents['fingerprint'][:12]}"
    return Recipe(contents, folder, digests)


class Digests:
    """The SHA-256 digests of files, kept with what tells that a file is as it was when it was read."""

    def __init__(self, cache: Path) -> None:
        """Take over the digests that an earlier process kept in the file `cache`, which need not exist."""
        self._cache = cache
        # Stamps of the files that this process has asked for.
        self._seen: dict[Path, list[int]] = {}
        # By path, the stamp of the file and its digest.
        self._known: dict[str, list] = {}
        with suppress(OSError, ValueError):
            self._known = json.loads(cache.read_bytes())
        self._has_new = False

    def of(self, path: Path) -> str:
        """Digest of a file, in hexadecimal: read now, or known from its stamp."""
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
        """Raise UserError if a file is no longer as it was when its digest was asked for."""
        for path, stamp in self._seen.items():
            if not path.exists() or _stamp(path) != stamp:
                raise UserError(
                    f"{path} must stay as it is while it is read, and it was changed; try again"
                )

    def save(self) -> None:
        """Keep the digests for the next process."""
        if self._has_new:
            # Where the folder cannot be written, as that of another user, files are read again at the next start.
            with suppress(OSError), replacing(self._cache) as file:
                file.write(json.dumps(self._known, indent=0).encode("utf-8"))


def _stamp(path: Path) -> list[int]:
    """Size of a file in bytes, and the times of its last changes, in nanoseconds.

    The first time is that of the content, which a program can set back; the second, which no program can set, is that
    of anything about the file.
    """
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
