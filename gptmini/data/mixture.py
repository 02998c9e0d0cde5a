"""A mixture: several texts or prepared folders, of which each block of sequences takes fixed shares."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired

from pydantic import Field, validate_call, with_config
from typing_extensions import TypedDict

from gptmini.data.corpus import Corpus, DigestOf, Document, HeldOut
from gptmini.data.meta import SPLITS, digest_of_json, read_meta, write_meta
from gptmini.data.opening import Encoding
from gptmini.data.outputs import is_prepared
from gptmini.data.paths import Paths
from gptmini.data.preparation import prepare
from gptmini.data.readers import FieldName, LossOn, OnError, Separator, Template
from gptmini.data.recipe import plan_recipe
from gptmini.data.splits import BuildTokenizer, SplitDocuments, Watcher, build_from
from gptmini.data.store import TokenStore
from gptmini.data.text_corpus import TextCorpus
from gptmini.settings import STRICT, FileName
from gptmini.tokenizer import Tokenizer, from_dict, of_ids, ready
from gptmini.user_error import UserError

# Options of the group tokenizer whose builders have other names.
OPTIONS = {"character": "char"}


@with_config(STRICT)
class SourceSettings(TypedDict):
    """What a configuration says of a source; besides path and weight, the arguments of TextCorpus."""

    path: Paths  # a prepared folder, or text
    # Sequences of each block. A block has as many as all weights together, and has to be short beside a run.
    weight: Annotated[int, Field(ge=1, le=10_000)]
    val_path: NotRequired[Paths | None]
    val_fraction: NotRequired[HeldOut]
    field: NotRequired[FieldName]
    separator: NotRequired[Separator | None]
    encoding: NotRequired[Encoding]
    on_error: NotRequired[OnError]
    template: NotRequired[Template | None]
    loss_on: NotRequired[LossOn]


class Part(NamedTuple):
    """A source of a mixture, before it is prepared."""

    name: str
    weight: int  # sequences of each block
    data: TextCorpus | TokenStore


class Mixture(Corpus):
    """Sources with their weights, as the data of a run."""

    @validate_call(config=STRICT)
    def __init__(
        self,
        sources: Annotated[dict[FileName, SourceSettings], Field(min_length=1)],
        val_fraction: HeldOut,
        name: FileName = "mixture",
    ) -> None:
        """Find the texts and folders.

        Args:
            sources: by name, for each source its path and weight. The path is that of a prepared folder, or of text as
                for TextCorpus, whose other arguments may be given too. Weights are whole numbers: a block has as many
                sequences as their sum, and takes from each source as many as its weight.
            val_fraction: share of each text that is held out, where the source does not say another.
            name: begins the name of the prepared folder.

        Raises pydantic.ValidationError: a value that does not fit. Raises UserError: a path with nothing to read.
        """
        self.name = name
        self.parts = [
            _part(key, source, {"val_fraction": val_fraction}) for key, source in sources.items()
        ]
        # Of the present or last reading: bytes of the texts that are read to their end, and the text that is read.
        self._n_read = 0
        self._present: TextCorpus | None = None

    @cached_property
    def _texts(self) -> list[tuple[TextCorpus, SplitDocuments]]:
        """Each text, and its documents in their splits."""
        texts = [part.data for part in self.parts if isinstance(part.data, TextCorpus)]
        return [(text, SplitDocuments(text, Watcher())) for text in texts]

    def identity(self, digest_of: DigestOf) -> dict:
        """Name, weight and identity of each source."""
        sources = []
        for name, weight, data in self.parts:
            is_store = isinstance(data, TokenStore)
            of_data = data.fingerprint if is_store else data.identity(digest_of)
            sources.append({"name": name, "weight": weight, "data": of_data})
        return {"sources": sources}

    def documents(self) -> Iterator[Document]:
        """The documents of the texts, each in its split; those of prepared folders are not read."""
        self._n_read = 0
        for text, documents in self._texts:
            self._present = text
            yield from documents.read()
            self._present = None
            self._n_read += text.size

    def share_read(self) -> float:
        """Share of the bytes of all texts, as they lie on disk, that documents() has read, from 0 to 1."""
        n_all = sum(text.size for text, _ in self._texts)
        n_read = self._n_read
        if self._present is not None:
            n_read += self._present.size * self._present.share_read()
        return n_read / max(n_all, 1)

    def prepare(
        self,
        build_tokenizer: BuildTokenizer,
        root: str | Path,
        *,
        n_workers: int = 1,
        watcher: Watcher | None = None,
    ) -> tuple[TokenStore, bool]:
        """Prepare the texts, all under one tokenizer, and a folder that names them; as data.prepare does for one text.

        Raises UserError: a text that cannot be read, or prepared folders of several tokenizers.
        """
        watcher = watcher or Watcher()
        recipe = plan_recipe(self, build_tokenizer, root)
        folder = recipe.folder
        kind = recipe.contents["builder"]["name"]
        known = read_meta(folder) if (folder / "meta.json").is_file() else None
        if known is not None:
            tokenizer = from_dict(known["tokenizer"])
        else:
            tokenizer = self._tokenizer(build_tokenizer, kind, watcher)

        # A source that was prepared before is opened; one that was deleted or moved since is made or found again.
        is_new = False
        stores = []
        # Prepared folders are named and known by the kind and the content of their tokenizer.
        builder = ready(tokenizer, name=kind, sha256=digest_of_json(tokenizer.to_dict()))
        for part in self.parts:
            store = part.data
            if not isinstance(store, TokenStore):
                store, is_prepared_now = prepare(
                    store,
                    builder,
                    root,
                    n_workers=n_workers,
                    watcher=replace(watcher, on_note=partial(_tell_of_source, watcher, part.name)),
                )
                is_new = is_new or is_prepared_now
            stores.append(store)

        sources = self._described(stores, folder)
        if known is None or known["sources"] != sources:
            is_new = True
            recipe.digests.check_unchanged()
            meta = recipe.contents | {
                "dtype": stores[0].meta["dtype"],
                "tokenizer": tokenizer.to_dict(),
                "sources": sources,
            }
            for split in SPLITS:
                meta[split] = {
                    "documents": sum(store.n_documents(split) for store in stores),
                    "bytes": sum(store.n_bytes(split) for store in stores),
                    "tokens": sum(store.n_tokens(split) for store in stores),
                    "largest_id": max(store.largest_id(split) for store in stores),
                }
            write_meta(folder, meta)
        return TokenStore(folder), is_new

    def _tokenizer(self, build_tokenizer: BuildTokenizer, kind: str, watcher: Watcher) -> Tokenizer:
        """The tokenizer of all sources: that of the prepared ones, or else built from all texts."""
        prepared = [part.data for part in self.parts if isinstance(part.data, TokenStore)]
        if not prepared:
            return build_from(build_tokenizer, SplitDocuments(self, watcher))

        for store in prepared:
            found = store.meta["builder"]["name"]
            if found != kind:
                raise UserError(
                    f"all sources must have one tokenizer, got {store.folder} with that of {found}, and {kind} for the "
                    f"others; add tokenizer={OPTIONS.get(found, found)}, or name the texts instead"
                )
            if of_ids(store.tokenizer_state) != of_ids(prepared[0].tokenizer_state):
                raise UserError(
                    f"all sources must have one tokenizer, got {prepared[0].folder} and {store.folder} with different "
                    "ones; name their texts instead, to learn one from all"
                )
        return prepared[0].tokenizer

    def _described(self, stores: list[TokenStore], folder: Path) -> list[dict]:
        """The sources as meta.json of a folder names them."""
        return [
            {
                "name": part.name,
                "weight": part.weight,
                "folder": os.path.relpath(store.folder, folder.parent),
                "fingerprint": store.fingerprint,
            }
            for part, store in zip(self.parts, stores, strict=True)
        ]


def _part(name: str, source: SourceSettings, defaults: dict[str, Any]) -> Part:
    """A source from what is said of it, and of all texts."""
    key = f"data.sources.{name}"
    options: dict[str, Any] = dict(source)
    given = options.pop("path")
    weight = options.pop("weight")

    if isinstance(given, str | Path) and is_prepared(Path(given).expanduser()):
        if options:
            raise UserError(
                f"{key} must have a path and a weight alone, because {given} is prepared already, got "
                f"{', '.join(sorted(options))}"
            )
        store = TokenStore(Path(given).expanduser())
        if "sources" in store.meta:
            raise UserError(f"{key}.path must hold text or tokens, got {given}, which is a mixture")
        return Part(name, weight, store)

    try:
        return Part(name, weight, TextCorpus(given, name=name, **(defaults | options)))
    except UserError as error:
        raise UserError(f"{key} cannot be read: {error}") from None


def _tell_of_source(watcher: Watcher, name: str, note: str) -> None:
    """Tell a watcher a note on the source of this name."""
    watcher.on_note(f"{name}: {note}")
