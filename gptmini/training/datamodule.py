"""Batches for Lightning: plain iterables whose position follows from the trainer's step."""

from collections.abc import Iterator

import lightning as L
from torch import Tensor

from gptmini.data.batches import gather, step_sequences, validation_windows, window_starts
from gptmini.data.store import TokenStore


def micro_steps(global_batch_size: int, batch_size: int, n_ranks: int) -> int:
    """Micro-steps in one optimizer step on each rank.

    Raises:
        ValueError: the global batch does not divide evenly.
    """
    if global_batch_size % (batch_size * n_ranks):
        raise ValueError(
            "trainer.global_batch_size must be a multiple of trainer.batch_size times devices, "
            f"got {global_batch_size}, {batch_size} and {n_ranks}"
        )
    return global_batch_size // (batch_size * n_ranks)


class TokenDataModule(L.LightningDataModule):
    """Training batches by step and rank; validation windows in order, shared out among ranks."""

    def __init__(
        self,
        store: TokenStore,
        *,
        context_length: int,
        global_batch_size: int,
        batch_size: int,
        val_tokens: int | None,
        seed: int,
    ) -> None:
        """Take the tokens and the sizes; see the trainer's settings.

        Raises:
            ValueError: either split is too short for its windows.
        """
        super().__init__()
        self.store, self.context_length, self.seed = store, context_length, seed
        self.global_batch_size, self.batch_size, self.val_tokens = global_batch_size, batch_size, val_tokens
        n_val_tokens = store.n_tokens("val")
        if n_val_tokens < context_length + 1:
            raise ValueError(
                f"the val split must hold one window of context_length={context_length} tokens and a target, "
                f"got {n_val_tokens} tokens; give more text or a smaller model.context_length"
            )
        window_starts([0], n_tokens=store.n_tokens("train"), context_length=context_length, seed=seed)

    def train_dataloader(self) -> "TrainBatches":
        """Endless micro-batches, from the trainer's step on."""
        return TrainBatches(self)

    def val_dataloader(self) -> "ValidationBatches":
        """This rank's share of the validation windows."""
        return ValidationBatches(self)


class TrainBatches:
    """Micro-batches of one rank. Has no length and no state: iterating starts at the trainer's global step."""

    def __init__(self, data: TokenDataModule) -> None:
        """Take the data module, and with it the trainer."""
        self.data = data

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (tokens, targets), int64 (B, T) each."""
        data, trainer = self.data, self.data.trainer
        tokens = data.store.tokens("train")
        n_micro_steps = micro_steps(data.global_batch_size, data.batch_size, trainer.world_size)
        step = trainer.global_step
        while True:
            for micro_step in range(n_micro_steps):
                sequences = step_sequences(
                    step,
                    micro_step,
                    global_batch_size=data.global_batch_size,
                    batch_size=data.batch_size,
                    rank=trainer.global_rank,
                    n_ranks=trainer.world_size,
                )
                starts = window_starts(
                    sequences, n_tokens=len(tokens), context_length=data.context_length, seed=data.seed
                )
                yield gather(tokens, starts, data.context_length)
            step += 1


class ValidationBatches:
    """Every n_ranks-th batch of the validation windows, in order."""

    def __init__(self, data: TokenDataModule) -> None:
        """Take the data module, and with it the trainer."""
        self.data = data

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (tokens, targets), int64 (B, T) each, the last ones smaller."""
        data, trainer = self.data, self.data.trainer
        windows = validation_windows(
            data.store.tokens("val"),
            context_length=data.context_length,
            batch_size=data.batch_size,
            max_tokens=data.val_tokens,
        )
        for i, batch in enumerate(windows):
            if i % trainer.world_size == trainer.global_rank:
                yield batch
