"""Token files that other programs wrote as the data of a run: found, counted, and named by a prepared folder."""

import glob
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from pydantic import validate_call

from gptmini.data.corpus import DigestOf, Document, HeldOut
from gptmini.data.encoder import BuildEncoder, Encoder
from gptmini.data.format import SPLITS
from gptmini.data.meta import put_meta, read_meta
from gptmini.data.preparation.digests import sha256_of
from gptmini.data.preparation.recipes import Recipe, plan_recipe
from gptmini.data.preparation.watching import Progress, Watcher
from gptmini.data.sources import Paths, find_files, note_on_held_out, without_held_out
from gptmini.data.sources.standard_input import NAME as STANDARD_INPUT
from gptmini.data.store import TokenStore
from gptmini.data.token_layouts import TokenFile, read_header
from gptmini.settings import STRICT, FileName
from gptmini.user_error import UserError

IDS_AT_ONCE = 2**22  # ids that are counted at once
VAL = re.compile(r"(^|[_-])val(idation)?([_-]|$)")  # in names of files that are held out


class TokenFiles:
    """Token files as a source of a run's data: read to count what is in them, and never copied."""

    @validate_call(config=STRICT)
    def __init__(
        self,
        path: Paths,
        val_path: Paths | None,
        val_fraction: HeldOut,
        name: FileName = "tokens",
    ) -> None:
        """Find the files.

        Args:
            path: a file, a folder, a glob, or a list of these, with training tokens.
            val_path: files with held-out tokens; those that path names too are not trained on. None to hold out the
                end of path.
            val_fraction: share of the tokens that is held out; unused with val_path.
            name: begins the name of the prepared folder.

        Raises pydantic.ValidationError: a value that does not fit. Raises UserError: a file that is no token file.
        """
        self.name = name
        self.val_fraction = val_fraction
        self.digest_of: DigestOf = sha256_of
        self.notes: list[str] = []
        self.files = _find_token_files("data.path", path)
        self.val_files: list[TokenFile] = []
        if val_path is not None:
            self.val_files = _find_token_files("data.val_path", val_path)
            kept = without_held_out(
                [file.path for file in self.files], [file.path for file in self.val_files]
            )
            self.notes = note_on_held_out(len(self.files) - len(kept))
            self.files = [file for file in self.files if file.path in set(kept)]
        self._set_named_val_apart()

    def _set_named_val_apart(self) -> None:
        """Hold out files that are called val, as nanoGPT's val.bin and fineweb_val_000000.bin, unless others are."""
        named = [file for file in self.files if VAL.search(file.path.stem)]
        if self.val_files or not named or len(named) == len(self.files):
            return
        self.val_files = named
        self.files = [file for file in self.files if file not in named]
        self.notes = [f"held out, by their names: {', '.join(file.path.name for file in named)}"]

    def identity(self) -> dict:
        """Digest of each file, in order, and the split rule."""
        identity: dict[str, object] = {
            "corpus": self.name,
            "files": [self.digest_of(file.path) for file in self.files],
        }
        if self.val_files:
            identity["val_files"] = [self.digest_of(file.path) for file in self.val_files]
        else:
            identity["val_fraction"] = self.val_fraction
        return identity

    def documents(self) -> Iterator[Document]:
        """Raise UserError: there is no text."""
        raise UserError(
            "token files have the ids of a tokenizer that is known beforehand, and no text to learn one from; "
            "add tokenizer=gpt2"
        )
        yield  # makes this function a generator, as that of any corpus

    def prepare(
        self,
        build_encoder: BuildEncoder,
        root: str | Path,
        *,
        rebuild: Callable[[dict], Encoder],
        n_workers: int,
        watcher: Watcher,
    ) -> tuple[TokenStore, bool]:
        """Describe the files in a prepared folder, unless that is there; arguments and result as for data.prepare.

        rebuild and n_workers are not needed, because nothing is encoded.
        Raises UserError: ids beyond the tokenizer's vocabulary.
        """
        recipe = plan_recipe(self, build_encoder, root)
        splits = self._splits()
        known = _known_places(recipe.folder)
        is_new = known != {split: _places(files) for split, files in splits.items()}
        if is_new:
            encoder = build_encoder(self.documents())
            meta = self._described(recipe, splits, encoder, watcher)
            recipe.digests.check_unchanged()
            put_meta(recipe.folder, meta)
        recipe.digests.save()
        return TokenStore(recipe.folder), is_new

    def _splits(self) -> dict[str, list[TokenFile]]:
        """The ids of each split."""
        if self.val_files:
            return {"train": self.files, "val": self.val_files}

        boundary = int(sum(file.tokens for file in self.files) * (1 - self.val_fraction))
        splits: dict[str, list[TokenFile]] = {"train": [], "val": []}
        for file in self.files:
            n_train = min(max(boundary, 0), file.tokens)
            boundary -= file.tokens
            for split, part in zip(SPLITS, file.parted(n_train), strict=True):
                if part.tokens:
                    splits[split].append(part)
        return splits

    def _described(
        self,
        recipe: Recipe,
        splits: dict[str, list[TokenFile]],
        encoder: Encoder,
        watcher: Watcher,
    ) -> dict:
        """What meta.json says of the files."""
        dtypes = {file.dtype for file in (*self.files, *self.val_files)}
        if len(dtypes) > 1:
            raise UserError(
                "all token files must have ids of the same number of bytes, got several"
            )
        (dtype,) = dtypes

        meta = recipe.contents | {"dtype": dtype.name, "tokenizer": encoder.to_dict()}
        n_all = sum(file.tokens for files in splits.values() for file in files)
        n_counted = 0
        for split, files in splits.items():
            counts = Counts(encoder)
            for file in files:
                ids = file.ids()
                for first in range(0, len(ids), IDS_AT_ONCE):
                    some = ids[first : first + IDS_AT_ONCE]
                    counts.add(some, file.path)
                    n_counted += len(some)
                    watcher.on_progress(
                        Progress(
                            phase="counting tokens",
                            n_bytes=n_counted * dtype.itemsize,
                            share=n_counted / n_all,
                        )
                    )
            meta[split] = counts.to_dict() | {"files": _places(files)}
            if not counts.n_bytes:
                raise UserError(f"the {split} split must hold text, got none; give more tokens")
        return meta


class Counts:
    """What is in the ids of a split."""

    def __init__(self, encoder: Encoder) -> None:
        self.n_bytes = 0
        self._n_tokens = 0
        self._n_documents = 0
        self._largest = 0
        self._end_of_text = encoder.end_of_text
        self._n_vocab = encoder.n_vocab
        self._byte_lengths = encoder.byte_lengths()

    def add(self, ids: np.ndarray, path: Path) -> None:
        """Count ids of a file; UserError for one that is beyond the vocabulary."""
        largest = int(ids.max())
        if largest >= self._n_vocab:
            raise UserError(
                f"{path} must hold ids below {self._n_vocab}, which is the number of the tokenizer's ids, got "
                f"{largest}; is it of another tokenizer?"
            )
        self._largest = max(self._largest, largest)
        self._n_tokens += len(ids)
        self.n_bytes += int(self._byte_lengths[ids].sum(dtype=np.int64))
        if self._end_of_text is not None:
            self._n_documents += int(np.count_nonzero(ids == self._end_of_text))

    def to_dict(self) -> dict:
        """The counts as meta.json holds them."""
        return {
            "documents": max(1, self._n_documents),
            "bytes": self.n_bytes,
            "tokens": self._n_tokens,
            "largest_id": self._largest,
            "crc32": [],
            "index_crc32": [],
        }


def _find_token_files(key: str, paths: Paths) -> list[TokenFile]:
    """The token files that paths mean; of a folder, those with names that end in .bin."""
    found: list[str | Path] = []
    for path in paths if isinstance(paths, list) else [paths]:
        if path == STANDARD_INPUT:
            raise UserError(f"{key} must name token files, got -; they are read where they lie")
        is_folder = path != "" and Path(path).expanduser().is_dir()
        found.append(f"{glob.escape(str(path))}/*.bin" if is_folder else path)
    return [read_header(file) for file in find_files(key, found).files]


def _places(files: Sequence[TokenFile]) -> list[dict]:
    """Where ids lie, as meta.json holds it."""
    return [
        {
            "path": str(file.path.absolute()),
            "skip": file.skip,
            "tokens": file.tokens,
            "size": file.path.stat().st_size,
        }
        for file in files
    ]


def _known_places(folder: Path) -> dict | None:
    """Where a prepared folder says that the ids of each split lie; None if there is no such folder."""
    if not (folder / "meta.json").is_file():
        return None
    meta = read_meta(folder)
    return {split: meta[split].get("files") for split in SPLITS}
