"""A mixture of texts and prepared folders. Each block of sequences takes a fixed number from each of them."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired

from pydantic import Field, validate_call, with_config
from typing_extensions import TypedDict

from gptmini.console.progress import Watcher
from gptmini.data.corpora.text_corpus import TextCorpus
from gptmini.data.corpus import DigestOf, HeldOut
from gptmini.data.prepared.meta import SPLITS, digest_of_json
from gptmini.data.prepared.preparation import LinkedCorpus, Preparation, prepare
from gptmini.data.prepared.splits import SplitDocuments, build_from
from gptmini.data.prepared.store import TokenStore
from gptmini.data.reading.opening import Encoding
from gptmini.data.reading.outputs import is_prepared
from gptmini.data.reading.paths import Paths
from gptmini.data.reading.readers import FieldName, LossOn, OnError, Separator, Template
from gptmini.settings import STRICT, FileName
from gptmini.system.errors import UserError
from gptmini.tokenizer import Document, Tokenizer, from_dict, identity_of, prebuilt

# The option of the configuration group "tokenizer" for each builder with a different name.
OPTIONS = {"character": "char"}


@with_config(STRICT)
class SourceSettings(TypedDict):
    """The configuration of a source. It contains a path, a weight, and optional arguments of TextCorpus."""

    path: Paths  # a prepared folder, or files with text
    # Number of sequences from this source in a block. All weights together are the length of a block. It must be short
    # compared to a run, because a run that ends in the middle of a block has read other proportions.
    weight: Annotated[int, Field(ge=1, le=10_000)]
    val_path: NotRequired[Paths | None]
    val_fraction: NotRequired[HeldOut]
    field: NotRequired[FieldName]
    separator: NotRequired[Separator | None]
    encoding: NotRequired[Encoding]
    on_error: NotRequired[OnError]
    template: NotRequired[Template | None]
    loss_on: NotRequired[LossOn]
    quote: NotRequired[bool | None]


class MixtureSource(NamedTuple):
    """A source of a mixture before it is prepared."""

    name: str
    weight: int  # sequences per block
    data: TextCorpus | TokenStore


class Mixture(LinkedCorpus):
    """A weighted mixture of sources, used as the data of a run."""

    @validate_call(config=STRICT)
    def __init__(
        self,
        sources: Annotated[dict[FileName, SourceSettings], Field(min_length=1)],
        val_fraction: HeldOut,
        name: FileName = "mixture",
        *,
        folder: str = "data/downloads",
        may_download: bool = True,
    ) -> None:
        """Find the texts and folders. configs/data/mixture.yaml describes the arguments.

        may_download is False if the sources come from a stored run and not from the command line.

        The name of the prepared folder starts with `name`.

        Raises pydantic.ValidationError for an invalid value. Raises UserError if a path has no text or tokens.
        """
        self.name = name
        usual = {"val_fraction": val_fraction, "folder": folder, "may_download": may_download}
        self.sources = [_source(key, settings, usual) for key, settings in sources.items()]
        self.is_text = all(isinstance(source.data, TextCorpus) for source in self.sources)
        # The texts that the current or last reading has begun to read.
        self._begun: list[TextCorpus] = []

    @cached_property
    def _texts(self) -> list[tuple[TextCorpus, SplitDocuments]]:
        texts = [source.data for source in self.sources if isinstance(source.data, TextCorpus)]
        return [(text, SplitDocuments(text, Watcher())) for text in texts]

    def identity(self, digest_of: DigestOf) -> dict:
        """Return the name, the weight and the identity of each source."""
        identities = []
        for name, weight, data in self.sources:
            is_store = isinstance(data, TokenStore)
            of_data = data.fingerprint if is_store else data.identity(digest_of)
            identities.append({"name": name, "weight": weight, "data": of_data})
        return {"sources": identities}

    def documents(self) -> Iterator[Document]:
        """Yield the documents of the texts. Each document has a split. Prepared folders are not read."""
        self._begun = []
        for text, documents in self._texts:
            self._begun.append(text)
            yield from documents.read()

    def share_read(self) -> float:
        """Return the fraction of the bytes of all texts on disk that documents() has read, from 0 to 1."""
        n_all = sum(text.size for text, _ in self._texts)
        n_read = sum(text.size * text.share_read() for text in self._begun)
        return n_read / max(n_all, 1)

    def link(self, preparation: Preparation) -> bool:
        """Prepare the texts with one tokenizer, and write a folder that refers to the prepared texts.

        Raises UserError if a text cannot be read, or if the prepared folders have different tokenizers.
        """
        existing = preparation.existing_meta()
        if existing is not None:
            tokenizer = from_dict(existing["tokenizer"])
        else:
            tokenizer = self._tokenizer(preparation)

        # Prepare texts, also if their folders were deleted since the mixture was prepared.
        stores, is_any_new = self._prepare_texts(preparation, tokenizer)
        links = [
            {
                "name": source.name,
                "weight": source.weight,
                "folder": os.path.relpath(store.folder, preparation.folder.parent),
                "fingerprint": store.fingerprint,
            }
            for source, store in zip(self.sources, stores, strict=True)
        ]
        if existing is not None and existing["sources"] == links:
            return is_any_new

        counts = {
            split: {
                "documents": sum(store.n_documents(split) for store in stores),
                "bytes": sum(store.n_bytes(split) for store in stores),
                "tokens": sum(store.n_tokens(split) for store in stores),
                "largest_id": max(store.meta[split]["largest_id"] for store in stores),
            }
            for split in SPLITS
        }
        more = {"sources": links} | counts
        preparation.write_links(tokenizer, stores[0].meta["dtype"], more)
        return True

    def _prepare_texts(
        self, preparation: Preparation, tokenizer: Tokenizer
    ) -> tuple[list[TokenStore], bool]:
        """Return the tokens of each source, and whether this call prepared one of the texts."""
        # The kind and the content of the tokenizer determine the names and fingerprints of prepared folders.
        sha256 = digest_of_json(tokenizer.to_dict())
        builder = prebuilt(tokenizer, name=preparation.kind, sha256=sha256)

        def forward(name: str, note: str) -> None:
            preparation.watcher.on_note(f"{name}: {note}")

        stores = []
        is_any_new = False
        for source in self.sources:
            store = source.data
            if not isinstance(store, TokenStore):
                store, is_new = prepare(
                    store,
                    builder,
                    preparation.folder.parent,
                    n_workers=preparation.n_workers,
                    watcher=replace(preparation.watcher, on_note=partial(forward, source.name)),
                )
                is_any_new |= is_new
            stores.append(store)
        return stores, is_any_new

    def _tokenizer(self, preparation: Preparation) -> Tokenizer:
        stores = [source.data for source in self.sources if isinstance(source.data, TokenStore)]
        if not stores:
            return build_from(preparation.build_tokenizer, preparation.documents)

        first = stores[0]
        for store in stores:
            kind = store.meta["builder"]["name"]
            if kind != preparation.kind:
                raise UserError(
                    f"{store.folder} has the tokenizer {kind}, and other sources have {preparation.kind}; "
                    f"set tokenizer={OPTIONS.get(kind, kind)}, or give the text instead of the folder"
                )
            if identity_of(store.tokenizer_state) != identity_of(first.tokenizer_state):
                raise UserError(
                    f"{first.folder} and {store.folder} have different tokenizers; give their texts instead"
                )
        return first.tokenizer


def _source(name: str, settings: SourceSettings, usual: dict[str, Any]) -> MixtureSource:
    key = f"data.sources.{name}"
    options: dict[str, Any] = dict(settings)
    path = options.pop("path")
    weight = options.pop("weight")

    if isinstance(path, str | Path) and is_prepared(Path(path).expanduser()):
        if options:
            raise UserError(
                f"{path} is a prepared folder; {key} may have only path and weight, got "
                f"{', '.join(sorted(options))}"
            )
        store = TokenStore(Path(path).expanduser())
        if "sources" in store.meta:
            raise UserError(f"{key}.path must contain text or tokens, got the mixture {path}")
        return MixtureSource(name, weight, store)

    try:
        return MixtureSource(name, weight, TextCorpus(path, name=name, **usual | options))
    except UserError as error:
        raise UserError(f"{key} cannot be read: {error}") from None
