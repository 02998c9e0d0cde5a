"""The data module gives Lightning its batches. They are plain iterables that start at the step of the trainer."""

import itertools
from collections.abc import Callable, Iterator

import lightning as L
import numpy as np
import torch
from torch import Tensor

from gptmini.data import (
    TokenStore,
    split_windows,
    starts_in_sources,
    step_sequences,
    validation_windows,
)
from gptmini.system.errors import UserError
from gptmini.training.prefetch import prefetch_batches
from gptmini.training.trainer_settings import TrainerSettings

# On these devices a thread cuts the next batch during a step. On a CPU the thread and the step would share the cores.
CUT_AHEAD_FOR = ("cuda",)


class TokenDataModule(L.LightningDataModule):
    """The data module of a run. The step and the rank determine each training batch.

    In the settings, batch_size must be a number. A window has context_length input tokens. The seed determines the
    order of the training windows.

    Raises UserError if the training or the validation split is too short for its windows.
    """

    trainer: L.Trainer  # set by Lightning before it requests batches

    def __init__(
        self, store: TokenStore, settings: TrainerSettings, *, context_length: int, seed: int
    ) -> None:
        super().__init__()
        self.store = store
        self.context_length = context_length
        self.seed = seed
        self.settings = settings

        longest = store.longest_context
        if context_length > longest:
            raise UserError(
                f"model.context_length must be at most {longest} for this text, got {context_length}; "
                "use more text, or lower model.context_length"
            )

    def train_dataloader(self) -> "Batches":
        """Return the endless micro-batches (tokens, targets) of this rank, int64 (B, T) each.

        The first micro-batch belongs to the current step of the trainer.
        """
        return Batches(self._training_batches)

    def val_dataloader(self) -> "Batches":
        """Return every n_ranks-th validation batch, beginning with number rank. The last batches may be smaller."""
        return Batches(self._validation_batches)

    def starts(self, step: int) -> list[int]:
        """Return the start positions, in the training tokens, of all windows in the global batch of a step."""
        size = self.settings.global_batch_size
        sequences = np.arange(step * size, (step + 1) * size, dtype=np.int64)
        return self._starts(sequences).tolist()

    def _starts(self, sequences: np.ndarray) -> np.ndarray:
        return starts_in_sources(
            sequences,
            self.store.sources,
            context_length=self.context_length,
            seed=self.seed,
        )

    def _training_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        first_step = self.trainer.global_step
        rank = self.trainer.global_rank
        n_ranks = self.trainer.world_size
        n_micro_steps = self.settings.n_micro_steps
        batch_size = self.settings.micro_batch_size

        def windows_of(number: int) -> np.ndarray:
            # (B, T + 1) of this rank; number 0 is the first micro-batch in first_step
            step, micro_step = divmod(number, n_micro_steps)
            sequences = step_sequences(
                first_step + step,
                micro_step,
                global_batch_size=self.settings.global_batch_size,
                batch_size=batch_size,
                rank=rank,
                n_ranks=n_ranks,
            )
            return self.store.training_windows(self._starts(sequences), self.context_length)

        device = self.trainer.strategy.root_device
        if device.type not in CUT_AHEAD_FOR:
            numbers = itertools.count()
            return (split_windows(windows_of(number)) for number in numbers)

        return prefetch_batches(windows_of, (batch_size, self.context_length + 1), device)

    def _validation_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        excerpts = self.store.excerpts("val", self.settings.val_tokens)
        batches = itertools.chain.from_iterable(
            validation_windows(
                excerpt.ids,
                context_length=self.context_length,
                batch_size=self.settings.micro_batch_size,
                max_tokens=excerpt.n_tokens,
            )
            for excerpt in excerpts
        )

        rank = self.trainer.global_rank
        n_ranks = self.trainer.world_size
        if self.settings.strategy == "fsdp2":
            of_rank = _in_step(batches, rank, n_ranks)
        else:
            of_rank = itertools.islice(batches, rank, None, n_ranks)

        while True:
            self.store.check_size("val")
            batch = next(of_rank, None)
            if batch is None:
                return
            yield batch


def _in_step(
    batches: Iterator[tuple[Tensor, Tensor]], rank: int, n_ranks: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every n_ranks-th batch, starting with batch number rank.

    Under FSDP2, all devices compute each batch together. So a rank with one batch less yields one without targets.
    """
    while turn := list(itertools.islice(batches, n_ranks)):
        if rank < len(turn):
            yield turn[rank]
        else:
            yield torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 0, dtype=torch.int64)


class Batches:
    """An iterable for Lightning that calls a function for each new iterator. An instance has no length and no state."""

    def __init__(self, iterate: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> None:
        self.iterate = iterate

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return a new iterator that starts at the current step of the trainer."""
        return self.iterate()
