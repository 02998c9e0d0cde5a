"""budget=: the sizes and the steps of a new run, chosen for its text, its machine and a time.

What is typed beside budget=, or set by an experiment, stays as it is. Everything else is chosen by the rule in
gptmini.training.budget.search, and stands in the run's configuration as plain numbers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gptmini.configuration.building import check_model, text_settings
from gptmini.configuration.keys import asks_for
from gptmini.configuration.overrides import Typed
from gptmini.job.tokens import open_tokens
from gptmini.key_table import keys_with
from gptmini.training.settings import Settings
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.data import Corpus, Progress, TokenStore, Watcher
    from gptmini.training.budget.law import Text
    from gptmini.training.budget.search import Candidate, Search

# Bytes of a text after which its size is estimated, by the share of its files that they took.
ENOUGH = 50_000_000


class Dialled(NamedTuple):
    """What was chosen for a run, and its open tokens."""

    changes: Mapping[str, Any]  # values by dotted key, for build_settings
    store: "TokenStore"
    prepared_now: bool
    lines: Sequence[str]  # that tell the user what was chosen, and why


class Dial:
    """Chooses what a budget leaves open in the settings of a new run.

    Args:
        settings: of the run.
        typed: what was typed for it.
        watcher: is told what is measured, and how far a preparation is.
        began: when the command began, in seconds of time.monotonic.
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
        self.ends = began + (settings.root.seconds or 0.0) - AROUND

    def choose(self) -> Dialled:
        """Choose the vocabulary and the sizes, open the tokens, and choose the steps.

        Raises UserError: the text cannot be read, or the time is over before training begins. Raises
        pydantic.ValidationError: no sizes fit what was typed.
        """
        from gptmini.training.assembling import check_prompts
        from gptmini.training.budget.law import Text

        assert self.settings.text is not None
        corpus = self.settings.text()
        candidates: list[Candidate] = []
        # A tokenizer whose size is chosen is made after that, and any other one before. Token files have a tokenizer,
        # and so may the parts of a mixture.
        has_size = (
            self._is_open("tokenizer.vocab_size")
            and "vocab_size" in self.settings.plain["tokenizer"]
        )
        if has_size and not hasattr(corpus, "prepare"):
            n_bytes = bytes_to_train_on(corpus)
            candidates = self._take_sizes(partial(Text.in_pairs, n_bytes))
        store, prepared_now = open_tokens(
            self.settings,
            self.typed,
            watcher=replace(self.watcher, on_progress=self._in_time(self.watcher.on_progress)),
            corpus=corpus,
        )
        check_prompts(self.settings.callbacks, store)
        text = Text.of(store)
        if not candidates:
            candidates = self._take_sizes(lambda width: text)
        seconds_a_step = self._take_steps(store, text)
        return Dialled(
            changes=self.changes,
            store=store,
            prepared_now=prepared_now,
            lines=self._lines(candidates, text, seconds_a_step),
        )

    def _take_sizes(self, text_of: "Callable[[int], Text]") -> "list[Candidate]":
        """Choose the vocabulary, the sizes of the model, and the sequences of a step; return what was compared.

        text_of gives the text in the tokens that suit a width.
        """
        from gptmini.training.budget.search import best_of

        # Told at every width, since a log gets a line only where the last one is some seconds old.
        def told_of(width: int) -> "Text":
            self._tell("measuring models of rising width")
            return text_of(width)

        candidates = self._search().candidates(told_of)
        best = best_of(candidates)
        chosen = {
            f"model.{name}": value
            for name, value in asdict(best.config).items()
            if self._is_open(f"model.{name}")
        }
        chosen["trainer.global_batch_size"] = best.global_batch_size
        if "vocab_size" in self.settings.plain["tokenizer"]:
            chosen["tokenizer.vocab_size"] = best.config.vocab_size
        self._take(chosen)
        return candidates

    def _search(self) -> "Search":
        """A search in the time that is left."""
        from gptmini.training.budget.search import Search

        return Search(
            model=self.settings.model,
            trainer=self.settings.trainer,
            make_optimizer=self.settings.optimizer.build,
            hardware=self.settings.hardware,
            is_open=self._is_open,
            seconds=self._left(),
        )

    def _take_steps(self, store: "TokenStore", text: "Text") -> float:
        """Choose the steps that fill the time that is left, and when to validate; return the seconds of a step."""
        from gptmini.training.assembling import assemble
        from gptmini.training.budget import timing

        self._tell("measuring the chosen model")
        module, _ = assemble(self.settings, store)
        seconds_a_step = timing.seconds_of_run(module, self.settings.hardware, seconds=self._left())
        trainer = self.settings.trainer
        tokens_a_step = trainer.global_batch_size * self.settings.model.context_length
        n_val_tokens = store.n_tokens("val")
        n_steps, val_every = timing.steps_in(
            self._left(),
            seconds_a_step,
            most=self._search().most_steps(text, tokens_a_step),
            tokens_a_step=tokens_a_step,
            n_val_tokens=min(n_val_tokens, trainer.val_tokens or n_val_tokens),
        )
        if n_steps < 1:
            raise self._too_short(f"a step takes {seconds_a_step:.2g} s, and a validation follows")
        self._take({"trainer.max_steps": n_steps, "trainer.val_every_steps": val_every})
        return seconds_a_step

    def _lines(
        self, candidates: "Sequence[Candidate]", text: "Text", seconds_a_step: float
    ) -> list[str]:
        """Lines on what was chosen, and why."""
        model = self.settings.model
        trainer = self.settings.trainer
        n_tokens = trainer.global_batch_size * model.context_length
        passes = trainer.max_steps * n_tokens * text.bytes_per_token / text.n_bytes
        return [
            f"{text.n_bytes:,} bytes to train on; {n_tokens / seconds_a_step:,.0f} tokens a second here",
            f"chosen: {text.n_vocab:,} ids, {model.n_layers} blocks of {model.d_model}, dropout {model.dropout:g}, "
            f"context {model.context_length}, {trainer.global_batch_size} sequences a step, {trainer.max_steps:,} "
            f"steps: {passes:.2g} passes over the text",
            *why(candidates),
        ]

    def _is_open(self, key: str) -> bool:
        """Whether a key may be chosen: it was neither typed nor set by an experiment or by the model of init_from.

        The steps of an experiment give way to the time.
        """
        if key not in keys_with("by_budget"):
            return False
        if key in ("trainer.max_steps", "trainer.val_every_steps"):
            return not self.typed.has(key)
        of_source = self.settings.root.init_from is not None and key.startswith(
            ("model.", "tokenizer.")
        )
        return not of_source and not asks_for(key, self.typed)

    def _take(self, changes: Mapping[str, Any]) -> None:
        """Keep what was chosen, but for what stays as it is."""
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
        self.settings = replace(
            settings,
            model=replace(settings.model, **by_group["model"]),
            trainer=replace(settings.trainer, **by_group["trainer"]),
            tokenizer=tokenizer,
        )
        # Before minutes of preparation. The callbacks are made for the chosen model once all is chosen.
        check_model(self.settings.model, settings.callbacks, settings.root.frozen)

    def _left(self) -> float:
        """Seconds that are left for training; UserError where there are none."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise self._too_short("it is over before training begins")
        return left

    def _too_short(self, reason: str) -> UserError:
        """The error of a budget that leaves no time to train."""
        return UserError(
            f"budget={self.settings.root.budget} leaves no time to train: {reason}; give more, or prepare a large text "
            "before, with the same tokenizer.vocab_size= for gptmini prepare and gptmini train"
        )

    def _tell(self, phase: str) -> None:
        """Tell the watcher what is being done."""
        from gptmini.data import Progress

        self.watcher.on_progress(Progress(phase=phase, n_bytes=0, share=None))

    def _in_time(self, on_progress: "Callable[[Progress], None]") -> "Callable[[Progress], None]":
        """A function that tells of progress as on_progress does, and ends the preparation where the time is over."""

        def tell(progress: "Progress") -> None:
            self._left()
            on_progress(progress)

        return tell


def why(candidates: "Sequence[Candidate]") -> list[str]:
    """A line on what the next narrower and the next wider model would come to, by the rule."""
    from gptmini.training.budget.search import best_of

    best = best_of(candidates)
    i = candidates.index(best)
    beside = [candidates[j] for j in (i - 1, i + 1) if 0 <= j < len(candidates)]
    losses = [
        f"{one.config.d_model} wide in {one.n_steps:,.0f} steps would end {one.loss / best.loss - 1:.1%} higher"
        for one in beside
    ]
    return [f"why: by the rule, {', and '.join(losses)}"] if losses else []


def bytes_to_train_on(corpus: "Corpus") -> int:
    """Bytes of the documents that a text gives to train on; an estimate for a large text."""
    n_bytes = 0  # that are read
    n_held_out = 0  # those of them that come as held out
    for document in corpus.documents():
        n_of_document = len(document.text.encode())
        n_bytes += n_of_document
        n_held_out += n_of_document if document.split == "val" else 0
        if n_bytes >= ENOUGH:
            n_all = n_bytes / (corpus.share_read() or 1)
            return round(n_all * (1 - corpus.share_held_out()))
    return round((n_bytes - n_held_out) * (1 - (corpus.val_fraction or 0)))
