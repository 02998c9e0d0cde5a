"""Open the tokens of a run, or prepare them from the text."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.configuration.messages import advising_on_memory
from gptmini.training.settings import TextSettings

if TYPE_CHECKING:
    from gptmini.checkpoint import TrainingState
    from gptmini.configuration.overrides import Typed
    from gptmini.console.progress import Watcher
    from gptmini.data import TokenStore


@advising_on_memory("lower num_workers, or tokenizer.train_bytes if a tokenizer is trained")
def open_tokens(
    settings: TextSettings,
    typed: "Typed",
    state: "TrainingState | None" = None,
    *,
    watcher: "Watcher | None" = None,
    corpus: Any = None,
) -> "tuple[TokenStore, bool]":
    """Open the tokens of a run, or prepare them. Return the tokens, and whether this call prepared them.

    The tokens of a resumed run (`state`) are opened if they still exist and data_dir is not overridden. If they are
    missing, no text is downloaded that only the run's folder names. The argument corpus is the text, if it is open
    already. The watcher receives the progress and notes. Raises UserError if the text cannot be read.
    """
    from gptmini.console.progress import Watcher
    from gptmini.data import TokenStore, find_prepared, prepare

    watcher = watcher or Watcher()
    if state is not None and not typed.has("data_dir"):
        known = find_prepared(state.data_folder, state.path)
        if (known / "meta.json").is_file():
            return TokenStore(known), False

    if corpus is None:
        assert settings.text is not None
        corpus = settings.text()
    store, is_new = prepare(
        corpus,
        _builder(settings, state),
        Path(settings.root.data_dir).expanduser(),
        n_workers=settings.root.n_workers,
        watcher=watcher,
    )
    wanted = getattr(settings.tokenizer, "vocab_size", None)
    if is_new and wanted is not None and store.tokenizer.n_vocab < wanted:
        watcher.on_note(
            f"the vocabulary has only {store.tokenizer.n_vocab:,} tokens instead of tokenizer.vocab_size={wanted}, "
            "because the text has no more pairs to merge"
        )
    return store, is_new


def _builder(settings: TextSettings, state: "TrainingState | None") -> Any:
    """Return the builder of a run's tokenizer.

    A resumed run that uses the tokenizer of another model has it in its state, because that model may have been
    deleted.
    """
    from gptmini.loading import builder_of, of_model
    from gptmini.tokenizer import from_dict

    builder = settings.tokenizer.builder()
    if getattr(builder, "func", builder) is not of_model:
        return builder
    return builder_of(from_dict(state.tokenizer) if state is not None else builder([]))
