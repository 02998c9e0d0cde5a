"""The LightningModule: the loss of a micro-step, the optimizer, and the sums that logging reads."""

import hashlib
from collections.abc import Callable

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from gptmini.evaluation import Evaluation, sum_of_nats
from gptmini.model import GPT, next_token_loss
from gptmini.model.checkpoint import header
from gptmini.optim import set_learning_rate
from gptmini.tokenizer import Tokenizer


class GPTModule(L.LightningModule):
    """Trains a GPT: automatic optimization, a learning rate and random draws that follow from the step alone."""

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        *,
        optimizer: Callable[[GPT], torch.optim.Optimizer],
        schedule: Callable[[int], float],
        max_steps: int,
        gradient_clip: float | None,
        seed: int,
        tokens_per_byte: float,
        data: dict,
        compile: bool,
    ) -> None:
        """Take the model and how to train it.

        Args:
            model: what is trained.
            tokenizer: travels in every checkpoint.
            optimizer: builds the optimizer, whose groups carry peak_lr.
            schedule: multiple of peak_lr at an optimizer step.
            max_steps: optimizer steps in all.
            gradient_clip: largest norm of the whole gradient; None for no limit.
            seed: of dropout.
            tokens_per_byte: of the validation split.
            data: where the tokens are; travels in every checkpoint, in plain JSON types.
            compile: whether to compile the training loss.

        Raises:
            ValueError: the optimizer refuses its settings.
        """
        super().__init__()
        self.model, self.tokenizer, self.data = model, tokenizer, data
        self.make_optimizer, self.schedule = optimizer, schedule
        self.max_steps, self.gradient_clip, self.seed = max_steps, gradient_clip, seed
        self.tokens_per_byte = tokens_per_byte
        self.step_loss: Tensor | None = None  # mean over the micro-steps of the newest optimizer step
        self.grad_norm: Tensor | None = None  # before clipping
        self.evaluation: Evaluation | None = None  # newest
        self.compute_loss = torch.compile(self._loss) if compile else self._loss
        optimizer(model)  # refuses bad settings now, before a run folder is made

    def _loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return next_token_loss(self.model(tokens), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the one optimizer."""
        return self.make_optimizer(self.model)

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Seed dropout from its position: (seed, step, micro-step, rank)."""
        if self.model.config.dropout:
            position = (self.trainer.global_step, batch_idx % self.trainer.accumulate_grad_batches, self.global_rank)
            digest = hashlib.blake2b(repr((self.seed, *position)).encode(), digest_size=8).digest()
            torch.manual_seed(int.from_bytes(digest, "little"))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Loss of one micro-step, in nats per token; Lightning divides it by their number."""
        loss = self.compute_loss(*batch)
        n_micro_steps = self.trainer.accumulate_grad_batches
        share = loss.detach() / n_micro_steps  # micro-batches hold equally many tokens
        self.step_loss = share if batch_idx % n_micro_steps == 0 else self.step_loss + share
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rate of this step."""
        set_learning_rate(optimizer, self.schedule(self.trainer.global_step))

    def configure_gradient_clipping(
        self, optimizer: torch.optim.Optimizer, gradient_clip_val: None = None, gradient_clip_algorithm: None = None
    ) -> None:
        """Clip by the norm of the whole gradient and keep that norm.

        Ours, because Lightning's own refuses a fused optimizer under mixed precision and drops the norm.
        """
        if self.gradient_clip is None:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            self.grad_norm = get_total_norm(gradients)
        else:
            self.grad_norm = clip_grad_norm_(self.model.parameters(), self.gradient_clip)

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        """Ask for one more validation after the last step, whether or not the interval has come round."""
        if self.trainer.global_step >= self.max_steps:
            self.trainer.should_stop = True

    def on_validation_epoch_start(self) -> None:
        """Forget the sums of the last validation."""
        self._nats = torch.zeros((), dtype=torch.float64)
        self._n_tokens = torch.zeros((), dtype=torch.float64)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add one batch of validation windows to the sums."""
        self._nats += sum_of_nats(self.model, *batch).cpu()
        self._n_tokens += batch[1].numel()

    def on_validation_epoch_end(self) -> None:
        """Turn the sums of all ranks into an Evaluation."""
        sums = torch.stack((self._nats, self._n_tokens))
        if self.trainer.world_size > 1:
            sums = self.trainer.strategy.reduce(sums.to(self.device), reduce_op="sum").cpu()
        self.evaluation = Evaluation.from_sums(sums[0].item(), int(sums[1]), self.tokens_per_byte)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """Add what makes the file enough to sample from."""
        checkpoint["gptmini"] = header(self.model.config, self.tokenizer.to_dict(), data=self.data)
        checkpoint["state_dict"] = dict(checkpoint["state_dict"])


def check_count(name: str, value: int) -> int:
    """Return value, or raise ValueError unless it is a whole number above 0."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a whole number above 0, got {value!r}")
    return value
