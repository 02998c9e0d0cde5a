"""Train and time a configuration in this process, prepared in the same way as by gptmini train."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import lightning as L
import torch

from gptmini.configuration.compose import compose
from gptmini.configuration.stored import settings_of
from gptmini.data import TokenStore
from gptmini.job.tokens import open_tokens
from gptmini.job.train import prepare_process
from gptmini.system.hardware import clock
from gptmini.training import GPTModule, TokenDataModule, build_trainer
from gptmini.training.assembling import assemble
from gptmini.training.settings import Settings

Parts = tuple[GPTModule, TokenDataModule]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The settings and the tokens of a run."""

    settings: Settings
    store: TokenStore

    @property
    def tokens_a_step(self) -> int:
        """Number of tokens per optimizer step."""
        return self.settings.trainer.global_batch_size * self.settings.model.context_length

    def assemble(self) -> Parts:
        """Return a new module and its batches."""
        return assemble(self.settings, self.store)


def subject_of(overrides: Sequence[str]) -> Subject:
    """Compose and check a configuration like gptmini train, prepare its text, and set up this process."""
    settings, typed = settings_of(compose("train", ["trainer.devices=1", *overrides]))
    prepare_process(settings)
    settings, store, _ = open_tokens(settings, typed)
    return Subject(settings=settings, store=store)


def fit(
    subject: Subject,
    folder: Path,
    *,
    callbacks: Sequence[L.Callback] = (),
    parts: Parts | None = None,
) -> None:
    """Train a subject with only these callbacks.

    Args:
        subject: settings and tokens.
        folder: run folder.
        callbacks: Lightning callbacks; the callbacks of the configuration are not used.
        parts: module and batches; None to assemble them here.
    """
    module, data = parts or subject.assemble()
    trainer = build_trainer(module, folder, callbacks=callbacks)
    trainer.fit(module, data)


class StepClock(L.Callback):
    """Records the end of each step; on a GPU with CUDA events, so that the host does not wait for the GPU."""

    def __init__(self, device: str) -> None:
        """Start without steps."""
        self.device = device
        self.ends: list = []  # CUDA events on a GPU, otherwise seconds

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        module: GPTModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Record the time if this micro-step is the last of its step."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return

        if self.device == "cuda":
            end = torch.cuda.Event(enable_timing=True)
            end.record()
        else:
            end = clock(self.device)
        self.ends.append(end)

    def seconds(self) -> list[float]:
        """Return the seconds of every step except the first, because its start is not recorded."""
        if self.device == "cuda":
            torch.cuda.synchronize()
            return [start.elapsed_time(end) / 1000 for start, end in pairwise(self.ends)]
        return [end - start for start, end in pairwise(self.ends)]


def fastest(device: str, function: Callable[[], object]) -> float:
    """Return the seconds of the fastest of ten calls, after a warm-up call."""
    function()
    seconds = []
    for _ in range(10):
        start = clock(device)
        function()
        seconds.append(clock(device) - start)
    return min(seconds)
