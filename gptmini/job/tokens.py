"""Open the tokens of a run, or prepare them from the text."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.configuration.messages import advising_on_memory
from gptmini.training.settings import TextSettings

if TYPE_CHECKING:
    from gptmini.checkpoint.training_state import TrainingState
    from gptmini.configuration.overrides import Typed
    from gptmini.data import TokenStore, Watcher


@advising_on_memory("lower num_workers, or tokenizer.train_bytes if a tokenizer is trained")
def open_tokens(
    settings: TextSettings,
    typed: "Typed",
    state: "TrainingState | None" = None,
    *,
    watcher: "Watcher | None" = None,
    corpus: Any = None,
) -> "tuple[TokenStore, bool]":
    """Open the tokens of a run, or prepare them from the text if they do not exist.

    Args:
        settings: the settings that determine the tokens.
        typed: the overrides of the run.
        state: the state of a resumed run, or None for a new run. The tokens of a resumed run are opened if they still
            exist and data_dir is not overridden.
        watcher: receives the progress, and notes about the text for the user. None to report nothing.
        corpus: the text, if it is open already. None to open the text that the configuration names.

    Return the tokens, and whether this call prepared them.
    Raises UserError if the text cannot be read. The text of a resumed run is not downloaded if only the run's folder
    names the source of the text. If the tokens of such a run are missing, this function raises UserError.
    """
    from gptmini.data import TokenStore, Watcher, find_prepared, prepare

    watcher = watcher or Watcher()
    if state is not None and not typed.has("data_dir"):
        known = find_prepared(state.data_folder, state.path)
        if (known / "meta.json").is_file():
            return TokenStore(known), False

    if corpus is None:
        assert settings.text is not None
        corpus = settings.text()
    # Token files and mixtures have their own prepare().
    prepare_it = getattr(corpus, "prepare", partial(prepare, corpus))
    store, is_new = prepare_it(
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

    If a resumed run uses the tokenizer of another model, read the tokenizer from the state of the run, because the
    other model may have been deleted.
    """
    from gptmini.loading import builder_of, of_model
    from gptmini.tokenizer import from_dict

    builder = settings.tokenizer.builder()
    if getattr(builder, "func", builder) is not of_model:
        return builder
    return builder_of(from_dict(state.tokenizer) if state is not None else builder([]))
