"""A notice that other programs take the processors that training computes on."""

import time

import lightning as L
import torch

from gptmini import processors
from gptmini.training.module import GPTModule
from gptmini.training.monitoring.logger import say

EVERY_SECONDS = 10.0  # between two looks at the processors
# Looks in a row that must find other programs there; a shorter visit is not worth a restart.
N_LOOKS = 3


class ContentionNotice(L.Callback):
    """Says once that other programs slow a run on the CPU down, and what helps.

    OpenMP's threads read how to wait when torch is loaded, so only a run that is stopped and resumed waits otherwise.
    Nothing is said where that was chosen already, or where the user has chosen.
    """

    def __init__(self) -> None:
        # The last reading; None before the first, and once the notice was given.
        self._before: processors.Usage | None = None
        self._n_found = 0  # looks in a row that found other programs
        self._next_look = 0.0  # in seconds of time.monotonic

    def on_train_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Begin to look, if this process alone computes the run, with several threads on the CPU."""
        computes_alone = trainer.world_size == 1 and pl_module.device.type == "cpu"
        is_chosen = processors.chosen_for() is not None or processors.users_own()
        if computes_alone and not is_chosen and torch.get_num_threads() > 1:
            self._go_on_from(processors.usage())

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: GPTModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Look again every few seconds, and end with the notice."""
        if self._before is None or time.monotonic() < self._next_look:
            return

        n_threads = torch.get_num_threads()
        now = processors.usage()
        found = processors.company(self._before, now, n_threads=n_threads)
        self._n_found = 0 if found is None else self._n_found + 1
        if found is None or self._n_found < N_LOOKS:
            self._go_on_from(now)
            return

        self._before = None
        say(
            trainer,
            f"slowed   {found}, and the {n_threads} threads of this run wait for each other; "
            f"stop it and go on with gptmini train resume=, whose threads will wait less",
        )

    def _go_on_from(self, reading: processors.Usage | None) -> None:
        self._before = reading
        self._next_look = time.monotonic() + EVERY_SECONDS
