"""The tokens of a run: opened where they are, or prepared from the text."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gptmini.commands.errors import advising_on_memory
from gptmini.commands.parts import TextSettings, build_part

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from gptmini.checkpoint.training_state import TrainingState
    from gptmini.commands.compose import Typed
    from gptmini.data import Progress, TokenStore, Watcher

# Seconds without a line after which the next one is printed where there is no terminal; fewer for a new phase.
INTERVAL = 10
INTERVAL_OF_PHASES = 1
# Seconds of a phase before its speed is told: the first figures are of the first megabyte.
SETTLED = 1
# Texts that are downloaded where they are not there.
DOWNLOADING = ("gptmini.data.PublishedText", "gptmini.data.hub_text")


@advising_on_memory("lower num_workers, or tokenizer.train_bytes where a tokenizer is learned")
def open_tokens(
    config: "DictConfig",
    typed: "Typed",
    settings: TextSettings,
    state: "TrainingState | None" = None,
    *,
    watcher: "Watcher | None" = None,
    corpus: Any = None,
) -> "tuple[TokenStore, bool]":
    """Open the tokens of a run, and prepare them from the text if they are not there.

    Args:
        config: the configuration.
        typed: what was typed for it.
        settings: its parts.
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
        is_stored = settings.root.resume is not None
        corpus = _stored_text(config) if is_stored else build_part(config.data)
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


def _stored_text(config: "DictConfig") -> Any:
    """The text of a run that goes on.

    Raises UserError: it must be downloaded, and only the run's folder says from where.
    """
    downloads = config.data.get("_target_") in DOWNLOADING
    return build_part(config.data, **({"may_download": False} if downloads else {}))


def _builder(settings: TextSettings, state: "TrainingState | None") -> Any:
    """What makes a run's tokenizer. Once a run has a state, the model that its tokenizer is from may be gone."""
    from gptmini.loading import builder_of, of_model
    from gptmini.tokenizer import from_dict

    builder = settings.tokenizer.builder()
    if getattr(builder, "func", builder) is not of_model:
        return builder
    return builder_of(from_dict(state.tokenizer) if state is not None else builder([]))


@contextmanager
def watching(console: "Console", topic: str = "") -> "Iterator[Watcher]":
    """A watcher that shows on a console how far a preparation is, and what a user should know of the text.

    topic is the word beside which a note is printed; a note without one begins the line.
    """
    from gptmini.data import Watcher

    beginning = f"{topic:8} " if topic else ""
    with ProgressLine(console) as line:
        yield Watcher(
            on_progress=line.show,
            on_note=lambda note: console.print(f"{beginning}{note}", markup=False),
        )


class ProgressLine:
    """Shows the progress of a preparation in a with block: a line that changes on a terminal, else one now and then."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._status = console.status("reading text")
        self.phase = ""  # what was last shown to be done
        self._phase_began = 0.0
        self._printed_at = time.monotonic()

    def __enter__(self) -> "ProgressLine":
        """Show that work has begun."""
        self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the line of a terminal."""
        self._status.stop()

    def show(self, progress: "Progress") -> None:
        """Show how far the preparation is."""
        now = time.monotonic()
        is_new = progress.phase != self.phase
        if is_new:
            self.phase = progress.phase
            self._phase_began = now
        line = described(progress, seconds=now - self._phase_began)

        silent = now - self._printed_at
        if self._console.is_terminal:
            self._status.update(line)
        elif silent >= INTERVAL or (is_new and silent >= INTERVAL_OF_PHASES):
            self._printed_at = now
            self._console.print(line, markup=False)


def described(progress: "Progress", *, seconds: float) -> str:
    """A line about a phase that began so many seconds ago: what is done, how much, how fast, and the time left."""
    if not progress.n_bytes:
        return progress.phase
    parts = [f"{progress.n_bytes / 1e6:,.0f} MB"]
    if progress.share is not None:
        parts.append(f"{progress.share:.0%}")
    if seconds >= SETTLED:
        parts.append(f"{progress.n_bytes / 1e6 / seconds:,.1f} MB/s")
        if progress.share:
            left = seconds * (1 - progress.share) / progress.share
            parts.append(f"{left:,.0f} s left" if left < 600 else f"{left / 60:,.0f} min left")
    return f"{progress.phase}: {', '.join(parts)}"
