"""A mixture: several texts or prepared folders, of which each block of sequences takes fixed shares."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired

from pydantic import Field, validate_call, with_config
from typing_extensions import TypedDict

from gptmini.data.corpus import DigestOf, Document, HeldOut
from gptmini.data.encoder import BuildEncoder, Encoder
from gptmini.data.format import SPLITS, digest_of_json
from gptmini.data.meta import is_prepared, put_meta, read_meta
from gptmini.data.preparation import prepare
from gptmini.data.preparation.digests import sha256_of
from gptmini.data.preparation.recipes import Recipe, plan_recipe
from gptmini.data.preparation.split_documents import SplitDocuments
from gptmini.data.preparation.watching import Watcher
from gptmini.data.sources import Encoding, FieldName, OnError, Paths, Separator
from gptmini.data.store import TokenStore
from gptmini.data.text_corpus import TextCorpus
from gptmini.settings import STRICT, FileName
from gptmini.user_error import UserError

# Options of the group tokenizer whose builders have other names.
OPTIONS = {"character": "char"}


@with_config(STRICT)
class Source(TypedDict):
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


class Part(NamedTuple):
    """A source of a mixture, before it is prepared."""

    name: str
    weight: int  # sequences of each block
    data: TextCorpus | TokenStore


class Mixture:
    """Sources with their weights, as the data of a run."""

    @validate_call(config=STRICT)
    def __init__(
        self,
        sources: Annotated[dict[FileName, Source], Field(min_length=1)],
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
        self.val_fraction = val_fraction
        self.digest_of: DigestOf = sha256_of
        self.parts = [self._part(key, source) for key, source in sources.items()]

    def _part(self, name: str, source: Source) -> Part:
        """A source from what is said of it."""
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
            if len(store.sources) > 1 or store.sources[0].name:
                raise UserError(
                    f"{key}.path must hold text or tokens, got {given}, which is a mixture"
                )
            return Part(name, weight, store)

        options.setdefault("val_fraction", self.val_fraction)
        try:
            return Part(name, weight, TextCorpus(given, name=name, **options))
        except UserError as error:
            raise UserError(f"{key} cannot be read: {error}") from None

    @property
    def notes(self) -> list[str]:
        """What a user should know of the texts."""
        corpora = [part.data for part in self.parts if isinstance(part.data, TextCorpus)]
        return [note for corpus in corpora for note in corpus.notes]

    def identity(self) -> dict:
        """Name, weight and identity of each source."""
        return {"corpus": self.name, "sources": [self._identity_of(part) for part in self.parts]}

    def _identity_of(self, part: Part) -> dict:
        """Name, weight and identity of a source."""
        if isinstance(part.data, TokenStore):
            of_data: object = part.data.fingerprint
        else:
            part.data.digest_of = self.digest_of
            of_data = part.data.identity()
        return {"name": part.name, "weight": part.weight, "data": of_data}

    def documents(self) -> Iterator[Document]:
        """The documents of the texts, each in its split; those of prepared folders are not read."""
        return iter(_AllDocuments(self.parts))

    def prepare(
        self,
        build_encoder: BuildEncoder,
        root: str | Path,
        *,
        rebuild: Callable[[dict], Encoder],
        n_workers: int,
        watcher: Watcher,
    ) -> tuple[TokenStore, bool]:
        """Prepare the texts, all under one tokenizer, and a folder that names them; as data.prepare does for one text.

        Raises UserError: a text that cannot be read, or prepared folders of several tokenizers.
        """
        recipe = plan_recipe(self, build_encoder, root)
        folder = recipe.folder
        if folder.exists():
            encoder = rebuild(read_meta(folder)["tokenizer"])
        else:
            encoder = self._encoder(build_encoder, recipe, rebuild, watcher)

        # A source that was prepared before is opened; one that was deleted or moved since is made or found again.
        known = _builder_of(encoder, recipe.contents["builder"]["name"])
        is_new = False
        stores = []
        for part in self.parts:
            store = part.data
            if not isinstance(store, TokenStore):
                store, is_prepared_now = prepare(
                    store,
                    known,
                    root,
                    n_workers=n_workers,
                    watcher=watcher,
                )
                is_new = is_new or is_prepared_now
            stores.append(store)

        sources = self._described(stores, folder)
        if not folder.exists() or read_meta(folder).get("sources") != sources:
            is_new = True
            recipe.digests.check_unchanged()
            self._write(recipe, encoder, stores, sources)
        recipe.digests.save()
        return TokenStore(folder), is_new

    def _encoder(
        self,
        build_encoder: BuildEncoder,
        recipe: Recipe,
        rebuild: Callable[[dict], Encoder],
        watcher: Watcher,
    ) -> Encoder:
        """The tokenizer of all sources: that of the prepared ones, or else built from all texts."""
        prepared = [part.data for part in self.parts if isinstance(part.data, TokenStore)]
        if not prepared:
            return build_encoder(_AllDocuments(self.parts, watcher))

        wanted = recipe.contents["builder"]["name"]
        for store in prepared:
            kind = store.meta["builder"]["name"]
            if kind != wanted:
                raise UserError(
                    f"all sources must have one tokenizer, got {store.folder} with that of {kind}, and {wanted} for "
                    f"the others; add tokenizer={OPTIONS.get(kind, kind)}, or name the texts instead"
                )
            if store.tokenizer_state != prepared[0].tokenizer_state:
                raise UserError(
                    f"all sources must have one tokenizer, got {prepared[0].folder} and {store.folder} with different "
                    "ones; name their texts instead, to learn one from all"
                )
        return rebuild(prepared[0].tokenizer_state)

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

    def _write(
        self, recipe: Recipe, encoder: Encoder, stores: list[TokenStore], sources: list[dict]
    ) -> None:
        """Write a folder that names the prepared folders of the sources."""
        meta = recipe.contents | {
            "dtype": stores[0].meta["dtype"],
            "tokenizer": encoder.to_dict(),
            "sources": sources,
        }
        for split in SPLITS:
            meta[split] = {
                "documents": sum(store.n_documents(split) for store in stores),
                "bytes": sum(store.n_bytes(split) for store in stores),
                "tokens": sum(store.n_tokens(split) for store in stores),
                "largest_id": max(store.largest_id(split) for store in stores),
                "crc32": [],
                "index_crc32": [],
            }
        put_meta(recipe.folder, meta)


class _AllDocuments:
    """The documents of all texts of a mixture, each in its split; they can be iterated several times."""

    def __init__(self, parts: list[Part], watcher: Watcher | None = None) -> None:
        self._texts = [
            SplitDocuments(part.data, watcher)
            for part in parts
            if isinstance(part.data, TextCorpus)
        ]

    def __iter__(self) -> Iterator[Document]:
        """Read the documents."""
        for documents in self._texts:
            yield from documents


def _builder_of(encoder: Encoder, kind: str) -> BuildEncoder:
    """A builder of a tokenizer that is there already; prepared folders are named and known by kind and content."""

    def build(documents: object, *, tokenizer: str) -> Encoder:
        return encoder

    build.__name__ = kind
    return partial(build, tokenizer=digest_of_json(encoder.to_dict()))
