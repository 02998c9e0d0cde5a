"""Fits in this process: a configuration made ready as gptmini train does it, trained by Lightning, and timed."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import lightning as L
import torch

from gptmini.configuration.building import build_settings
from gptmini.configuration.compose import compose
from gptmini.configuration.stored import resolved
from gptmini.data import TokenStore
from gptmini.hardware import clock
from gptmini.job.tokens import open_tokens
from gptmini.job.train import prepare_process
from gptmini.training import GPTModule, TokenDataModule, build_trainer
from gptmini.training.assembling import assemble
from gptmini.training.settings import Settings

Parts = tuple[GPTModule, TokenDataModule]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A configuration, and what a run takes from it: the settings and the tokens."""

    settings: Settings
    store: TokenStore

    @property
    def tokens_a_step(self) -> int:
        """Tokens that an optimizer step trains on."""
        return self.settings.trainer.global_batch_size * self.settings.model.context_length

    def assemble(self) -> Parts:
        """A new module and its batches."""
        return assemble(self.settings, self.store)


def subject_of(overrides: Sequence[str]) -> Subject:
    """Compose and check a configuration as gptmini train does, prepare its text, and set up this process."""
    plain, typed = resolved(compose("train", ["trainer.devices=1", *overrides]))
    settings = build_settings(plain)
    prepare_process(settings)
    store, _ = open_tokens(settings, typed)
    return Subject(settings=settings, store=store)


def fit(
    subject: Subject,
    folder: Path,
    *,
    callbacks: Sequence[L.Callback] = (),
    parts: Parts | None = None,
) -> None:
    """Train a subject with these callbacks alone.

    Args:
        subject: what is trained.
        folder: the run's folder.
        callbacks: what Lightning calls; those of the configuration are left out.
        parts: the module and the batches; assembled here if None.
    """
    module, data = parts or subject.assemble()
    settings = replace(subject.settings, callbacks=callbacks)
    trainer = build_trainer(settings, module, folder)
    trainer.fit(module, data)


class StepClock(L.Callback):
    """Notes when each step ends: on a GPU by the GPU's own clock, for which the host need not wait."""

    def __init__(self, device: str) -> None:
        """Begin with no step."""
        self.device = device
        self.ends: list = []  # CUDA events on a GPU, else seconds

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        module: GPTModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Note the time if this micro-step is the last of its step."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return

        if self.device == "cuda":
            end = torch.cuda.Event(enable_timing=True)
            end.record()
        else:
            end = clock(self.device)
        self.ends.append(end)

    def seconds(self) -> list[float]:
        """Return the seconds of every step but the first, whose start was not noted."""
        if self.device == "cuda":
            torch.cuda.synchronize()
            return [start.elapsed_time(end) / 1000 for start, end in pairwise(self.ends)]
        return [end - start for start, end in pairwise(self.ends)]


def fastest(device: str, function: Callable[[], object]) -> float:
    """The seconds of the fastest of ten calls, after one that warms up."""
    function()
    seconds = []
    for _ in range(10):
        start = clock(device)
        function()
        seconds.append(clock(device) - start)
    return min(seconds)


def give_back_memory(device: str) -> None:
    """Give back the memory of a GPU that earlier fits took, and start counting its peak anew."""
    if device != "cuda":
        return
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
