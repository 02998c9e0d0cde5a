"""The tokens of a run: opened where they are, or prepared from the text."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.configuration.messages import advising_on_memory
from gptmini.training.settings import TextSettings

if TYPE_CHECKING:
    from gptmini.checkpoint.training_state import TrainingState
    from gptmini.configuration.overrides import Typed
    from gptmini.data import TokenStore, Watcher


@advising_on_memory("lower num_workers, or tokenizer.train_bytes where a tokenizer is learned")
def open_tokens(
    settings: TextSettings,
    typed: "Typed",
    state: "TrainingState | None" = None,
    *,
    watcher: "Watcher | None" = None,
    corpus: Any = None,
) -> "tuple[TokenStore, bool]":
    """Open the tokens of a run, and prepare them from the text if they are not there.

    Args:
        settings: what decides which tokens there are.
        typed: what was typed for the run.
        state: the state that a run goes on from; its tokens are opened if they are still there, unless another data_dir
            was typed.
        watcher: is told of the progress, and of what a user should know of the text; None for nobody.
        corpus: the text, where it has been opened before; None to open that of the configuration.

    Returns the tokens, and whether they were prepared by this call.
    Raises UserError: the text cannot be read; or the tokens of a run that goes on are not there, and only the run's
    folder says from where to download their text.
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
    # Token files and mixtures are prepared in their own ways.
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
            f"the tokenizer has {store.tokenizer.n_vocab:,} ids, not the {wanted:,} of tokenizer.vocab_size: "
            "the text has no more pairs to merge"
        )
    return store, is_new


def _builder(settings: TextSettings, state: "TrainingState | None") -> Any:
    """What makes a run's tokenizer. Once a run has a state, the model that its tokenizer is from may be gone."""
    from gptmini.loading import builder_of, of_model
    from gptmini.tokenizer import from_dict

    builder = settings.tokenizer.builder()
    if getattr(builder, "func", builder) is not of_model:
        return builder
    return builder_of(from_dict(state.tokenizer) if state is not None else builder([]))
