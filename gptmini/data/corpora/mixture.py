"""A mixture of sources. Each source is a text or a prepared folder.

Each block takes a fixed number of sequences from each source.
"""

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
from gptmini.data.corpus import Corpus, DigestOf, Document, HeldOut
from gptmini.data.prepared.meta import SPLITS, digest_of_json
from gptmini.data.prepared.preparation import Preparation, prepare
from gptmini.data.prepared.splits import SplitDocuments, build_from
from gptmini.data.prepared.store import TokenStore
from gptmini.data.reading.opening import Encoding
from gptmini.data.reading.outputs import is_prepared
from gptmini.data.reading.paths import Paths
from gptmini.data.reading.readers import FieldName, LossOn, OnError, Separator, Template
from gptmini.settings import STRICT, FileName
from gptmini.system.errors import UserError
from gptmini.tokenizer import Tokenizer, from_dict, identity_of, prebuilt

# Options of the configuration group "tokenizer" that have a different name than their builder. The keys are the names
# of the builders.
OPTIONS = {"character": "char"}


@with_config(STRICT)
class SourceSettings(TypedDict):
    """The configuration of a source. It contains a path, a weight, and optional arguments of TextCorpus."""

    path: Paths  # a prepared folder, or files with text
    # Number of sequences from this source in a block. The sum of all weights is the number of sequences in a block. A
    # block must be short compared to a run.
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


class Part(NamedTuple):
    """A source of a mixture before it is prepared."""

    name: str
    weight: int  # sequences per block
    data: TextCorpus | TokenStore


class Mixture(Corpus):
    """Sources with weights. They are the data of a run."""

    is_text = False

    @validate_call(config=STRICT)
    def __init__(
        self,
        sources: Annotated[dict[FileName, SourceSettings], Field(min_length=1)],
        val_fraction: HeldOut,
        name: FileName = "mixture",
    ) -> None:
        """Find the texts and folders. configs/data/mixture.yaml describes the arguments.

        The name of the prepared folder starts with `name`.

        Raises pydantic.ValidationError for an invalid value. Raises UserError if a path has no text or tokens.
        """
        self.name = name
        self.parts = [
            _part(key, source, {"val_fraction": val_fraction}) for key, source in sources.items()
        ]
        # The state of the current or last reading.
        self._n_read = 0  # bytes of the texts that were read completely
        self._current: TextCorpus | None = None

    @cached_property
    def _texts(self) -> list[tuple[TextCorpus, SplitDocuments]]:
        texts = [part.data for part in self.parts if isinstance(part.data, TextCorpus)]
        return [(text, SplitDocuments(text, Watcher())) for text in texts]

    def identity(self, digest_of: DigestOf) -> dict:
        """Return the name, the weight and the identity of each source."""
        sources = []
        for name, weight, data in self.parts:
            is_store = isinstance(data, TokenStore)
            of_data = data.fingerprint if is_store else data.identity(digest_of)
            sources.append({"name": name, "weight": weight, "data": of_data})
        return {"sources": sources}

    def documents(self) -> Iterator[Document]:
        """Yield the documents of the texts. Each document has a split. Prepared folders are not read."""
        self._n_read = 0
        for text, documents in self._texts:
            self._current = text
            yield from documents.read()
            self._current = None
            self._n_read += text.size

    def share_read(self) -> float:
        """Return the fraction of the bytes of all texts on disk that documents() has read, from 0 to 1."""
        n_all = sum(text.size for text, _ in self._texts)
        n_read = self._n_read
        if self._current is not None:
            n_read += self._current.size * self._current.share_read()
        return n_read / max(n_all, 1)

    def prepare_tokens(self, preparation: Preparation) -> bool:
        """Prepare the texts with one tokenizer, and write a folder that refers to the prepared texts.

        Raises UserError if a text cannot be read, or if the prepared folders have different tokenizers.
        """
        folder = preparation.folder
        known = preparation.known_meta()
        if known is not None:
            tokenizer = from_dict(known["tokenizer"])
        else:
            tokenizer = self._tokenizer(preparation)

        # Prepare texts, also if their folders were deleted since the mixture was prepared.
        is_new = False
        stores = []
        # The kind and the content of the tokenizer determine the names and fingerprints of prepared folders.
        kind = preparation.kind
        builder = prebuilt(tokenizer, name=kind, sha256=digest_of_json(tokenizer.to_dict()))

        def forward(name: str, note: str) -> None:
            preparation.watcher.on_note(f"{name}: {note}")

        for part in self.parts:
            store = part.data
            if not isinstance(store, TokenStore):
                store, is_prepared_now = prepare(
                    store,
                    builder,
                    folder.parent,
                    n_workers=preparation.n_workers,
                    watcher=replace(preparation.watcher, on_note=partial(forward, part.name)),
                )
                is_new = is_new or is_prepared_now
            stores.append(store)

        sources = [
            {
                "name": part.name,
                "weight": part.weight,
                "folder": os.path.relpath(store.folder, folder.parent),
                "fingerprint": store.fingerprint,
            }
            for part, store in zip(self.parts, stores, strict=True)
        ]
        if known is not None and known["sources"] == sources:
            return is_new
        counts = {
            split: {
                "documents": sum(store.n_documents(split) for store in stores),
                "bytes": sum(store.n_bytes(split) for store in stores),
                "tokens": sum(store.n_tokens(split) for store in stores),
                "largest_id": max(store.largest_id(split) for store in stores),
            }
            for split in SPLITS
        }
        dtype = stores[0].meta["dtype"]
        preparation.write_links(tokenizer, dtype, {"sources": sources} | counts)
        return True

    def _tokenizer(self, preparation: Preparation) -> Tokenizer:
        prepared = [part.data for part in self.parts if isinstance(part.data, TokenStore)]
        if not prepared:
            return build_from(preparation.build_tokenizer, preparation.documents)

        kind = preparation.kind
        for store in prepared:
            found = store.meta["builder"]["name"]
            if found != kind:
                raise UserError(
                    f"all sources must have the same tokenizer, got {found} in {store.folder} and {kind} in the "
                    f"other sources; set tokenizer={OPTIONS.get(found, found)}, or give text instead of this folder"
                )
            if identity_of(store.tokenizer_state) != identity_of(prepared[0].tokenizer_state):
                raise UserError(
                    f"all sources must have the same tokenizer, but {prepared[0].folder} and {store.folder} have "
                    "different tokenizers; to learn one tokenizer from all texts, give the texts instead of the folders"
                )
        return prepared[0].tokenizer


def _part(name: str, source: SourceSettings, defaults: dict[str, Any]) -> Part:
    key = f"data.sources.{name}"
    options: dict[str, Any] = dict(source)
    given = options.pop("path")
    weight = options.pop("weight")

    if isinstance(given, str | Path) and is_prepared(Path(given).expanduser()):
        if options:
            raise UserError(
                f"{given} is a prepared folder, so {key} must have only the keys 'path' and 'weight', got "
                f"{', '.join(sorted(options))}"
            )
        store = TokenStore(Path(given).expanduser())
        if "sources" in store.meta:
            raise UserError(f"{key}.path must contain text or tokens, got the mixture {given}")
        return Part(name, weight, store)

    try:
        return Part(name, weight, TextCorpus(given, name=name, **(defaults | options)))
    except UserError as error:
        raise UserError(f"{key} cannot be read: {error}") from None
