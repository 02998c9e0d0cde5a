"""Implement the key budget=: choose the sizes and the steps of a new run for its text, its machine and a time limit.

Command-line overrides and the values of an experiment are kept. gptmini.training.budget chooses all other values. The
run's configuration stores the chosen values as plain numbers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial

from gptmini.configuration.building import build_settings
from gptmini.configuration.init_from import fit_context
from gptmini.configuration.keys import is_chosen_by_experiment
from gptmini.configuration.request import UserRequest
from gptmini.console.progress import Progress, Watcher
from gptmini.data import TokenStore
from gptmini.job.callbacks import build_callbacks
from gptmini.job.recipe import with_recipe
from gptmini.job.tokens import open_corpus, open_tokens
from gptmini.key_table import keys_with
from gptmini.settings import seconds_of
from gptmini.system.errors import UserError
from gptmini.training import (
    SECONDS_AROUND,
    Rung,
    Settings,
    TextSize,
    assemble,
    best_rung,
    climb_ladder,
    hardware_of,
    measure_module,
    most_useful_steps,
    seconds_of_validation,
    steps_that_fit,
)

# Fraction of the time that is used to measure the chosen model, because the speed of many machines changes every few
# seconds. A minute is enough to average over these changes.
CHOSEN_SHARE = 0.03
CHOSEN_SECONDS = 60.0
TOO_SLOW = "one step takes {:.3g} s, and a validation must follow it"


class BudgetChooser:
    """Chooses all settings of a new run that neither the user nor an experiment has set.

    The watcher receives the progress of measurements and of the preparation.
    """

    def __init__(self, settings: Settings, request: UserRequest, watcher: Watcher) -> None:
        self.settings = settings
        self.request = request
        self.watcher = watcher
        self.open_keys = keys_to_choose(settings, request)
        self.reasons: list[str] = []  # why the run is compiled or not
        self.deadline = request.began + seconds_of(settings.root.budget or 0.0) - SECONDS_AROUND

    def choose(self) -> tuple[Settings, TokenStore, bool, Sequence[str]]:
        """Choose the vocabulary and the sizes, then open the tokens, then choose the number of steps.

        Return the new settings, the tokens, whether this call prepared them, and lines about the choice.
        Raises UserError if the text cannot be read, or if the time is too short for a step and a validation. Raises
        pydantic.ValidationError if no sizes fit the overrides.
        """
        corpus = open_corpus(self.settings)
        rungs: list[Rung] = []
        # If the vocabulary size is chosen here, choose it before building the tokenizer. Token files have their own
        # tokenizer. The sources of a mixture may have their own tokenizer, too.
        if "tokenizer.vocab_size" in self.open_keys and corpus.is_text:
            rungs = self._choose_sizes(partial(TextSize.in_pairs, corpus.bytes_to_train_on()))

        def on_progress(progress: Progress) -> None:
            self._seconds_left()
            self.watcher.on_progress(progress)

        self.settings, store, prepared_now = open_tokens(
            self.settings,
            self.request,
            watcher=replace(self.watcher, on_progress=on_progress),
            corpus=corpus,
        )
        self.settings = fit_context(self.settings, self.request, store, self.watcher)
        text = TextSize.of(store)
        # With init_from=, the sizes of the model are fixed.
        if not rungs and any(key.startswith("model.") for key in self.open_keys):
            rungs = self._choose_sizes(lambda width: text)
        tokens_a_second = self._choose_steps(store, text)
        auto = self.settings.auto_keys - self.open_keys
        self.settings, of_recipe = with_recipe(self.settings, store, auto)
        lines = lines_of(self.settings, text, rungs, tokens_a_second)
        return self.settings, store, prepared_now, [*lines, *self.reasons, *of_recipe]

    def _choose_sizes(self, text_of: Callable[[int], TextSize]) -> list[Rung]:
        # Report at every width. The progress line itself limits how often it prints.
        def reported_text_of(width: int) -> TextSize:
            self.watcher.on_progress(Progress(phase="measuring models of increasing width"))
            return text_of(width)

        seconds = self._seconds_left()
        rungs = climb_ladder(self.settings, self.open_keys, reported_text_of, seconds)
        best = best_rung(rungs)
        if best.n_steps < 1:
            raise self._too_short(TOO_SLOW.format(best.seconds_a_step))
        self._apply(
            {
                **{f"model.{name}": value for name, value in asdict(best.config).items()},
                "trainer.global_batch_size": best.global_batch_size,
                "trainer.max_steps": max(1, int(best.n_steps)),
                "tokenizer.vocab_size": best.config.vocab_size,
            }
        )
        # The pictures may not fit the chosen model.
        build_callbacks(self.settings)
        return rungs

    def _choose_steps(self, store: TokenStore, text: TextSize) -> float:
        """Choose the number of steps, and how often to validate. Return the training tokens per second."""
        self.watcher.on_progress(Progress(phase="measuring the chosen model"))
        # Dropout takes time. For the measurement, it suits the estimated number of steps.
        settings, _ = with_recipe(self.settings, store, ())

        tokens_a_step = settings.trainer.global_batch_size * settings.model.context_length
        most = most_useful_steps(settings.trainer, self.open_keys, text, tokens_a_step)
        # trainer.compile=auto suits the most steps that the run may do in its time.
        trainer = replace(settings.trainer, max_steps=int(most), max_time=self._seconds_left())
        module, _ = assemble(replace(settings, trainer=trainer), store)
        if module.settings.compile != settings.trainer.compile:
            self.reasons.append(module.hardware.reasons["compile"])
        chosen = {"trainer.compile": module.settings.compile}
        self.settings = build_settings(self.settings.plain, chosen)

        seconds_a_step, warm_up = measure_module(
            module,
            seconds=min(CHOSEN_SHARE * self._seconds_left(), CHOSEN_SECONDS),
        )

        seconds = self._seconds_left()
        if module.hardware.compile and module.settings.n_ranks > 1:
            # Only this rank has compiled the loss. The other ranks compile it in their first step.
            seconds -= warm_up
        n_steps, val_every = steps_that_fit(
            seconds,
            seconds_a_step,
            seconds_of_validation(seconds_a_step, module),
            most=most,
        )
        if n_steps < 1:
            raise self._too_short(TOO_SLOW.format(seconds_a_step))
        self._apply({"trainer.max_steps": n_steps, "trainer.val_every_steps": val_every})
        return module.tokens_per_step / seconds_a_step

    def _apply(self, chosen: dict[str, float]) -> None:
        changes = {key: value for key, value in chosen.items() if key in self.open_keys}
        self.settings = build_settings(self.settings.plain, changes)

    def _seconds_left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self._too_short("the time ran out before training started")
        return left

    def _too_short(self, reason: str) -> UserError:
        fix = "raise budget="
        if hardware_of(self.settings).compile:
            fix += ", set trainer.compile=false"
        if "tokenizer.vocab_size" in self.open_keys:
            fix += (
                ", or run gptmini prepare before gptmini train and give both commands the same "
                "tokenizer.vocab_size="
            )
        budget = self.settings.root.budget
        return UserError(f"budget={budget} leaves no time to train: {reason}; {fix}")


def keys_to_choose(settings: Settings, request: UserRequest) -> frozenset[str]:
    """Return the keys that budget= may choose.

    budget= must not change a key that an override, an experiment or the model of init_from sets. There are two
    exceptions. budget= replaces an experiment's number of steps. An option such as model=llama_tiny chooses the form of
    the model, but not its sizes.
    """
    chosen = []
    for key in keys_with("by_budget"):
        group, _, name = key.partition(".")
        of_source = settings.root.init_from is not None and group in ("model", "tokenizer")
        is_duration = key in ("trainer.max_steps", "trainer.val_every_steps")
        is_set = request.has(key) or (not is_duration and is_chosen_by_experiment(key, request))
        is_set = is_set and key not in settings.auto_keys
        if name in settings.plain[group] and not of_source and not is_set:
            chosen.append(key)
    return frozenset(chosen)


def lines_of(
    settings: Settings, text: TextSize, rungs: Sequence[Rung], tokens_a_second: float
) -> list[str]:
    """Return lines that show the chosen values, and compare the next narrower and wider rungs with the best."""
    model = settings.model
    trainer = settings.trainer
    n_tokens = trainer.max_steps * trainer.global_batch_size * model.context_length
    passes = n_tokens * text.bytes_per_token / text.n_bytes
    lines = [
        f"{text.n_bytes:,} training bytes; {tokens_a_second:,.0f} tokens per second",
        f"chosen: vocabulary {text.n_vocab:,}, {model.n_layers} blocks of width {model.d_model}, "
        f"context {model.context_length}, {trainer.global_batch_size} sequences per "
        f"step, {trainer.max_steps:,} steps: {passes:.2g} passes over the text",
    ]
    if len(rungs) > 1:
        best = best_rung(rungs)
        i = rungs.index(best)
        losses = [
            f"{other.loss / best.loss - 1:.1%} higher at width {other.config.d_model} after {other.n_steps:,.0f} steps"
            for other in rungs[max(0, i - 1) : i + 2]
            if other is not best
        ]
        lines.append(f"why: the predicted loss is {' and '.join(losses)}")
    return lines
