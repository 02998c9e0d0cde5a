"""Open the tokens of a run, or prepare them from the text."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gptmini.configuration.building import build_component, target_class
from gptmini.configuration.messages import advising_on_memory
from gptmini.configuration.request import UserRequest
from gptmini.console.progress import Watcher
from gptmini.data import Corpus, TokenStore, find_prepared, prepare
from gptmini.loading import builder_of, of_model
from gptmini.tokenizer import from_dict
from gptmini.training import MOST_TOKENS, TextSettings, suitable_vocabulary

if TYPE_CHECKING:  # gptmini prepare does not need torch
    from gptmini.checkpoint import TrainingState


T = TypeVar("T", bound=TextSettings)
VOCABULARY = "tokenizer.vocab_size"


def with_vocabulary(settings: T, corpus: Corpus) -> T:
    """Return the settings with a number for tokenizer.vocab_size, if it is auto. Tokens have their own vocabulary."""
    if VOCABULARY not in settings.auto_keys:
        return settings
    n_vocab = MOST_TOKENS
    if corpus.is_text:
        n_vocab = suitable_vocabulary(corpus.bytes_to_train_on())
    plain = settings.plain
    return replace(
        settings,
        tokenizer=replace(settings.tokenizer, vocab_size=n_vocab),
        plain={**plain, "tokenizer": plain["tokenizer"] | {"vocab_size": n_vocab}},
    )


def open_corpus(settings: TextSettings) -> Corpus:
    """Open the text. A resumed run does not download a text that only its folder names."""
    may_download = {}
    target = target_class(settings.corpus)
    if settings.root.resume is not None and target is not None:
        accepted = inspect.signature(target).parameters
        may_download = {"may_download": False} if "may_download" in accepted else {}
    return build_component(settings.corpus, **may_download)


@advising_on_memory("lower num_workers, or tokenizer.train_bytes if a tokenizer is trained")
def open_tokens(
    settings: T,
    request: UserRequest,
    state: "TrainingState | None" = None,
    *,
    watcher: Watcher | None = None,
    corpus: Corpus | None = None,
) -> tuple[T, TokenStore, bool]:
    """Open the tokens of a run, or prepare them. Return the settings, the tokens, and whether this call prepared them.

    If the settings have no number for tokenizer.vocab_size yet, they get one.

    The tokens of a resumed run (`state`) are opened if they still exist and data_dir is not overridden. If they are
    missing, no text is downloaded that only the run's folder names. The argument corpus is the text, if it is open
    already. The watcher receives the progress and notes. Raises UserError if the text cannot be read.
    """
    watcher = watcher or Watcher()
    if state is not None and not request.has("data_dir"):
        prepared = find_prepared(state.data_folder, state.path)
        if (prepared / "meta.json").is_file():
            return settings, TokenStore(prepared), False

    corpus = corpus or open_corpus(settings)
    settings = with_vocabulary(settings, corpus)
    store, is_new = prepare(
        corpus,
        _builder(settings, state),
        Path(settings.root.data_dir).expanduser(),
        n_workers=settings.root.n_workers,
        watcher=watcher,
    )
    vocab_size = getattr(settings.tokenizer, "vocab_size", None)
    if is_new and vocab_size is not None and store.tokenizer.n_vocab < vocab_size:
        watcher.on_note(
            f"the vocabulary has {store.tokenizer.n_vocab:,} tokens instead of tokenizer.vocab_size={vocab_size}: "
            "the text has no more pairs to merge"
        )
    return settings, store, is_new


def _builder(settings: TextSettings, state: "TrainingState | None") -> Any:
    """Return the builder of a run's tokenizer.

    A resumed run that uses the tokenizer of another model has it in its state, because that model may have been
    deleted.
    """
    builder = settings.tokenizer.builder()
    if getattr(builder, "func", builder) is not of_model:
        return builder
    return builder_of(from_dict(state.tokenizer) if state is not None else builder([]))
