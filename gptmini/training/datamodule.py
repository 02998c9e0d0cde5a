"""Batches for Lightning: plain iterables whose position follows from the trainer's step."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import lightning as L
import numpy as np
from torch import Tensor

from gptmini.checks import UserError
from gptmini.data.batches import cut_windows, gather, step_sequences, validation_windows, window_starts
from gptmini.data.store import TokenStore
from gptmini.training.ahead import batches_ahead
from gptmini.training.settings import TrainerSettings, micro_steps

CUT_AHEAD_FOR = ("cuda",)  # devices that compute while the processor cuts; on a CPU both are the same cores


class TokenDataModule(L.LightningDataModule):
    """Training batches by step and rank; validation windows in order, shared out among ranks."""

    def __init__(self, store: TokenStore, settings: TrainerSettings, *, context_length: int, seed: int) -> None:
        """Take the tokens and the sizes; UserError if either split is too short for its windows."""
        super().__init__()
        self.store, self.context_length, self.seed = store, context_length, seed
        self.global_batch_size, self.batch_size = settings.global_batch_size, settings.batch_size
        self.val_tokens = settings.val_tokens
        n_val_tokens = store.n_tokens("val")
        if n_val_tokens < context_length + 1:
            raise UserError(
                f"the val split must hold one window of context_length={context_length} tokens and a target, "
                f"got {n_val_tokens} tokens; give more text or a smaller model.context_length"
            )
        self._starts([0])

    def train_dataloader(self) -> "Batches":
        """Endless micro-batches (tokens, targets) of this rank, int64 (B, T) each, from the trainer's step on."""
        return Batches(self._training_batches)

    def val_dataloader(self) -> "Batches":
        """This rank's share of the validation windows, in order: every n_ranks-th batch; the last ones are smaller."""
        return Batches(self._validation_batches)

    def starts(self, step: int) -> list[int]:
        """Where the windows of a step's global batch begin in the training tokens."""
        return self._starts(range(step * self.global_batch_size, (step + 1) * self.global_batch_size)).tolist()

    def _starts(self, sequences: Sequence[int]) -> np.ndarray:
        n_tokens = self.store.n_tokens("train")
        return window_starts(sequences, n_tokens=n_tokens, context_length=self.context_length, seed=self.seed)

    def _training_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Micro-batches from the trainer's step on."""
        tokens = self.store.tokens("train")
        first_step = self.trainer.global_step
        rank = self.trainer.global_rank
        sizes = {
            "global_batch_size": self.global_batch_size,
            "batch_size": self.batch_size,
            "n_ranks": self.trainer.world_size,
        }
        n_micro_steps = micro_steps(**sizes)

        def starts(number: int) -> np.ndarray:
            step, micro_step = divmod(number, n_micro_steps)
            return self._starts(step_sequences(first_step + step, micro_step, rank=rank, **sizes))

        device = self.trainer.strategy.root_device
        if device.type not in CUT_AHEAD_FOR:
            return (gather(tokens, starts(number), self.context_length) for number in itertools.count())

        def cut(number: int, windows: np.ndarray) -> None:
            windows[:] = cut_windows(tokens, starts(number), self.context_length)

        return batches_ahead(cut, (self.batch_size, self.context_length + 1), device)

    def _validation_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        sizes = {"context_length": self.context_length, "batch_size": self.batch_size, "max_tokens": self.val_tokens}
        windows = validation_windows(self.store.tokens("val"), **sizes)
        return itertools.islice(windows, self.trainer.global_rank, None, self.trainer.world_size)


class Batches:
    """What Lightning iterates: as often as it likes, from where the trainer then stands; without length or state."""

    def __init__(self, iterate: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> None:
        self.iterate = iterate

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Begin anew."""
        return self.iterate()
