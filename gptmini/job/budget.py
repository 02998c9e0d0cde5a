"""Implement the key budget=: choose the sizes and the steps of a new run for its text, its machine and a time limit.

Command-line overrides and the values of an experiment are kept. gptmini.training.budget.search chooses all other
values. The run's configuration stores the chosen values as plain numbers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gptmini.configuration.building import check_model, hardware_for, text_settings
from gptmini.configuration.init_from import fit_context
from gptmini.configuration.keys import is_chosen_by_experiment
from gptmini.configuration.overrides import Typed
from gptmini.job.tokens import open_tokens
from gptmini.key_table import keys_with
from gptmini.training.settings import Settings
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.data import Corpus, Progress, TokenStore, Watcher
    from gptmini.training.budget.law import Text
    from gptmini.training.budget.search import Candidate, Search

# After this many bytes, stop reading the text. Then estimate the total size of the text from the fraction of its
# files that was read.
ENOUGH = 50_000_000
TIME_OVER = "the time ran out before training started"


class BudgetChoice(NamedTuple):
    """The values that were chosen for a run, and the tokens of the run."""

    changes: Mapping[str, Any]  # values by dotted key, for build_settings
    store: "TokenStore"
    prepared_now: bool
    lines: Sequence[str]  # tell the user the chosen values and the reason


class BudgetChooser:
    """Chooses all settings of a new run that neither the user nor an experiment has set.

    Args:
        settings: settings of the run.
        typed: the overrides of the run.
        watcher: receives the progress of measurements and of the preparation.
        began: start of the command, in seconds of time.monotonic.
    """

    def __init__(
        self,
        settings: Settings,
        typed: Typed,
        watcher: "Watcher",
        *,
        began: float,
    ) -> None:
        from gptmini.training.budget.timing import AROUND

        self.settings = settings
        self.typed = typed
        self.changes: dict[str, Any] = {}
        self.watcher = watcher
        self.deadline = began + (settings.root.seconds or 0.0) - AROUND

    def choose(self) -> BudgetChoice:
        """Choose the vocabulary and the sizes, then open the tokens, then choose the number of steps.

        Raises UserError if the text cannot be read, or if the time runs out before training starts. Raises
        pydantic.ValidationError if no sizes fit the overrides.
        """
        from gptmini.training.assembling import check_prompts
        from gptmini.training.budget.law import Text

        assert self.settings.text is not None
        corpus = self.settings.text()
        candidates: list[Candidate] = []
        # If the vocabulary size is chosen here, choose it before building the tokenizer. Token files have their own
        # tokenizer. The sources of a mixture may have their own tokenizer, too.
        chooses_vocabulary = (
            self._is_open("tokenizer.vocab_size")
            and "vocab_size" in self.settings.plain["tokenizer"]
        )
        if chooses_vocabulary and not hasattr(corpus, "prepare"):
            n_bytes = bytes_to_train_on(corpus)
            candidates = self._choose_sizes(partial(Text.in_pairs, n_bytes))
        store, prepared_now = open_tokens(
            self.settings,
            self.typed,
            watcher=replace(
                self.watcher, on_progress=self._with_deadline(self.watcher.on_progress)
            ),
            corpus=corpus,
        )
        self.settings = fit_context(self.settings, self.typed, store, self.watcher)
        check_prompts(self.settings.callbacks, store)
        text = Text.of(store)
        # With init_from=, the model's sizes are fixed, so there is nothing to search.
        sizes = [key for key in keys_with("by_budget") if key.startswith("model.")]
        if not candidates and any(map(self._is_open, sizes)):
            candidates = self._choose_sizes(lambda width: text)
        seconds_a_step = self._choose_steps(store, text)
        return BudgetChoice(
            changes=self.changes,
            store=store,
            prepared_now=prepared_now,
            lines=self._lines(candidates, text, seconds_a_step),
        )

    def _choose_sizes(self, text_of: "Callable[[int], Text]") -> "list[Candidate]":
        """Choose the vocabulary, the model sizes and the batch size. Return the models that were compared.

        The function text_of takes the width of a model. It returns the size of the text. The size is counted in tokens
        that suit a model of this width.
        """
        from gptmini.training.budget.search import best_of
        from gptmini.training.budget.timing import TooSlow

        # Report at every width. The progress line itself limits how often it prints.
        def reported_text_of(width: int) -> "Text":
            self._report("measuring models of increasing width")
            return text_of(width)

        try:
            candidates = self._search().candidates(reported_text_of)
        except TooSlow as error:
            raise self._too_slow(error.seconds) from None
        best = best_of(candidates)
        chosen = {
            f"model.{name}": value
            for name, value in asdict(best.config).items()
            if self._is_open(f"model.{name}")
        }
        chosen["trainer.global_batch_size"] = best.global_batch_size
        if "vocab_size" in self.settings.plain["tokenizer"]:
            chosen["tokenizer.vocab_size"] = best.config.vocab_size
        self._apply(chosen)
        return candidates

    def _search(self) -> "Search":
        """Return a search for the remaining time."""
        from gptmini.training.budget.search import Search

        return Search(
            model=self.settings.model,
            trainer=self.settings.trainer,
            make_optimizer=self.settings.optimizer.build,
            hardware_for=partial(hardware_for, trainer=self.settings.trainer),
            is_open=self._is_open,
            seconds=self._seconds_left(),
        )

    def _choose_steps(self, store: "TokenStore", text: "Text") -> float:
        """Choose the number of steps that fill the remaining time, and how often to validate.

        Return the seconds per step.
        """
        from gptmini.training.assembling import assemble
        from gptmini.training.budget import timing

        self._report("measuring the chosen model")
        module, _ = assemble(self.settings, store)
        trainer = self.settings.trainer
        tokens_a_step = trainer.global_batch_size * self.settings.model.context_length
        most = self._search().most_steps(text, tokens_a_step)
        seconds = self._seconds_left()
        try:
            seconds_a_step, warm_up = timing.seconds_of_step(
                module, self.settings.hardware, seconds=seconds, limit=seconds
            )
        except timing.TooSlow as error:
            raise self._too_slow(error.seconds) from None

        seconds = self.deadline - time.monotonic()
        if module.compiles and trainer.n_ranks > 1:
            # Only this rank has compiled the loss. The other ranks compile it in their first step.
            seconds -= warm_up
        n_steps, val_every = timing.steps_that_fit(
            seconds,
            seconds_a_step,
            most=most,
            tokens_a_step=tokens_a_step,
            n_val_tokens=timing.n_validation_tokens(store, trainer),
        )
        if n_steps < 1:
            raise self._too_slow(seconds_a_step if seconds > 0 else 0.0)
        self._apply({"trainer.max_steps": n_steps, "trainer.val_every_steps": val_every})
        return seconds_a_step

    def _lines(
        self, candidates: "Sequence[Candidate]", text: "Text", seconds_a_step: float
    ) -> list[str]:
        """Return lines that show the chosen values and explain why budget= chose them."""
        model = self.settings.model
        trainer = self.settings.trainer
        n_tokens = trainer.global_batch_size * model.context_length
        passes = trainer.max_steps * n_tokens * text.bytes_per_token / text.n_bytes
        return [
            f"{text.n_bytes:,} training bytes; {n_tokens / seconds_a_step:,.0f} tokens per second",
            f"chosen: vocabulary {text.n_vocab:,}, {model.n_layers} blocks of width {model.d_model}, "
            f"dropout {model.dropout:g}, context {model.context_length}, {trainer.global_batch_size} sequences per "
            f"step, {trainer.max_steps:,} steps: {passes:.2g} passes over the text",
            *why(candidates),
        ]

    def _is_open(self, key: str) -> bool:
        """Return whether budget= may choose a key.

        budget= must not change a key that an override, an experiment or the model of init_from sets. There are two
        exceptions. budget= replaces an experiment's number of steps. An option such as model=llama_tiny chooses the
        form of the model, but not its sizes.
        """
        if key not in keys_with("by_budget"):
            return False
        if key in ("trainer.max_steps", "trainer.val_every_steps"):
            return not self.typed.has(key)
        of_source = self.settings.root.init_from is not None and key.startswith(
            ("model.", "tokenizer.")
        )
        is_set = self.typed.has(key) or is_chosen_by_experiment(key, self.typed)
        return not of_source and not is_set

    def _apply(self, changes: Mapping[str, Any]) -> None:
        """Apply chosen values to the settings. Skip the keys that budget= may not choose."""
        changes = {key: value for key, value in changes.items() if self._is_open(key)}
        self.changes |= changes

        by_group: dict[str, dict[str, Any]] = {"model": {}, "trainer": {}, "tokenizer": {}}
        for key, value in changes.items():
            group, _, name = key.partition(".")
            by_group[group][name] = value
        settings = self.settings
        tokenizer = settings.tokenizer
        if by_group["tokenizer"]:
            tokenizer = text_settings(settings.plain, self.changes).tokenizer
        model = replace(settings.model, **by_group["model"])
        trainer = replace(settings.trainer, **by_group["trainer"])
        self.settings = replace(
            settings,
            model=model,
            trainer=trainer,
            hardware=hardware_for(model.d_model, trainer),
            tokenizer=tokenizer,
        )
        # Check the callbacks now, because preparing the text can take minutes. The final callbacks are built later, for
        # the chosen model.
        check_model(self.settings.model, settings.callbacks, settings.root.frozen)

    def _seconds_left(self) -> float:
        """Return the seconds that remain for training. Raise UserError if no time remains."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self._too_short(TIME_OVER)
        return left

    def _too_slow(self, seconds_a_step: float) -> UserError:
        """Return the error for a budget that is too short for one step and a validation.

        The argument seconds_a_step is 0 if the time is over and no step was measured.
        """
        if seconds_a_step == 0:
            return self._too_short(TIME_OVER)
        return self._too_short(
            f"one step takes {seconds_a_step:.3g} s or more, and a validation must follow it"
        )

    def _too_short(self, reason: str) -> UserError:
        """Return the error for a budget that leaves no time to train."""
        fix = "raise budget="
        if self.settings.hardware.compile:
            fix += ", set trainer.compile=false"
        if self._is_open("tokenizer.vocab_size"):
            fix += (
                ", or run gptmini prepare before gptmini train and give both commands the same "
                "tokenizer.vocab_size="
            )
        budget = self.settings.root.budget
        return UserError(f"budget={budget} leaves no time to train: {reason}; {fix}")

    def _report(self, phase: str) -> None:
        """Report the current phase to the watcher."""
        from gptmini.data import Progress

        self.watcher.on_progress(Progress(phase=phase, n_bytes=0, share=None))

    def _with_deadline(
        self, on_progress: "Callable[[Progress], None]"
    ) -> "Callable[[Progress], None]":
        """Return a function that calls on_progress, but raises UserError once the time is over."""

        def report(progress: "Progress") -> None:
            self._seconds_left()
            on_progress(progress)

        return report


def why(candidates: "Sequence[Candidate]") -> list[str]:
    """Return a line that compares the predicted losses of the next narrower and the next wider model with the best."""
    from gptmini.training.budget.search import best_of

    if not candidates:
        return []
    best = best_of(candidates)
    i = candidates.index(best)
    neighbours = [candidates[j] for j in (i - 1, i + 1) if 0 <= j < len(candidates)]
    losses = [
        f"{other.loss / best.loss - 1:.1%} higher at width {other.config.d_model} after {other.n_steps:,.0f} steps"
        for other in neighbours
    ]
    return [f"why: the predicted loss is {' and '.join(losses)}"] if losses else []


def bytes_to_train_on(corpus: "Corpus") -> int:
    """Return the number of UTF-8 bytes to train on. For a large text, estimate this number."""
    n_bytes = 0  # bytes of all documents that were read
    n_held_out = 0  # bytes of the documents that the corpus itself holds out
    for document in corpus.documents():
        n_of_document = len(document.text.encode())
        n_bytes += n_of_document
        n_held_out += n_of_document if document.split == "val" else 0
        if n_bytes >= ENOUGH:
            n_all = n_bytes / (corpus.share_read() or 1)
            return round(n_all * (1 - corpus.share_held_out()))
    return round((n_bytes - n_held_out) * (1 - (corpus.val_fraction or 0)))
