"""The LightningModule: the loss of a micro-step, the optimizer, and the sums that logging reads."""

import hashlib
from collections.abc import Callable
from functools import partial

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from gptmini.data.store import TokenStore
from gptmini.evaluation import Evaluation, sum_of_nats, token_losses
from gptmini.model import GPT, training_loss
from gptmini.model.checkpoint import header
from gptmini.optim import set_learning_rate
from gptmini.optim.muon import MOMENTS
from gptmini.training.settings import TrainerSettings


class GPTModule(L.LightningModule):
    """Trains a GPT: automatic optimization, a learning rate and random draws that follow from the step alone."""

    def __init__(
        self,
        model: GPT,
        store: TokenStore,
        settings: TrainerSettings,
        *,
        optimizer: Callable[[GPT], torch.optim.Optimizer],
        schedule: Callable[..., float],
        seed: int,
        compile: bool,
        checkpoint: dict | None = None,
    ) -> None:
        """Take the model and how to train it; the store's tokenizer, and where it lies, travel in every checkpoint.

        schedule(step, max_steps=) is a multiple of the peak_lr in the optimizer's groups; seed is dropout's;
        checkpoint is what read_checkpoint returned, to go on from, and model the one that it holds.
        Raises ValueError: the optimizer refuses its settings, or the checkpoint's optimizer state does not fit.
        """
        super().__init__()
        self.model, self.store, self.settings, self.seed = model, store, settings, seed
        self.make_optimizer, self.schedule = optimizer, schedule
        self.step_loss: Tensor | None = None  # mean over the micro-steps of the newest optimizer step
        self.grad_norm: Tensor | None = None  # before clipping
        self.evaluation: Evaluation | None = None  # newest
        own = checkpoint["gptmini"] if checkpoint else {"bad_steps": (0, 0), "validated_step": 0}
        self.bad_steps, self.bad_steps_in_a_row = own["bad_steps"]  # not applied: loss or gradient was not finite
        self.validated_step = own["validated_step"]
        self.optimizer_state = checkpoint["optimizer_states"][0]["state"] if checkpoint else {}
        self.compute_loss = partial(torch.compile(training_loss) if compile else training_loss, model)
        # Bad settings or a foreign state are refused now, before a run folder is made.
        self.peak_lr: float = self.configure_optimizers().param_groups[0]["peak_lr"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the one optimizer, with the state to go on from; its settings are of the configuration."""
        optimizer = self.make_optimizer(self.model)
        if self.optimizer_state:  # empty before the first step that was applied
            parameters = ((group, parameter) for group in optimizer.param_groups for parameter in group["params"])
            for i, (group, parameter) in enumerate(parameters):
                kinds = {name: (tensor.shape, tensor.dtype) for name, tensor in self.optimizer_state.get(i, {}).items()}
                moments = MOMENTS[group.get("kind", "adamw")]
                wanted = dict.fromkeys(moments, (parameter.shape, parameter.dtype)) | {"step": ((), torch.float32)}
                if kinds != wanted:
                    raise ValueError(f"the optimizer's state of weight {i} must be {wanted}, got {kinds}")
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": self.optimizer_state, "param_groups": groups})
        return optimizer

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
        set_learning_rate(optimizer, self.schedule(self.trainer.global_step, max_steps=self.settings.max_steps))

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer, *closure: object) -> None:
        """Step, then free the gradients: Lightning would keep them through the next forward pass."""
        super().optimizer_step(epoch, batch_idx, optimizer, *closure)
        optimizer.zero_grad()

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, **limits: None) -> None:
        """Clip by the norm of the whole gradient and keep that norm; drop a gradient that is not finite."""
        # Ours, because Lightning's own refuses a fused optimizer under mixed precision and drops the norm.
        if self.settings.gradient_clip is None:
            self.grad_norm = get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        else:
            self.grad_norm = clip_grad_norm_(self.model.parameters(), self.settings.gradient_clip)
        finite = torch.isfinite(self.grad_norm) & torch.isfinite(self.step_loss)
        if self.trainer.world_size > 1:  # one rank's loss may be infinite where the common gradient is not
            finite = self.trainer.strategy.reduce(finite.float(), reduce_op="min")
        if finite.item():
            self.bad_steps_in_a_row = 0
        else:
            optimizer.zero_grad(set_to_none=True)  # an optimizer leaves alone what has no gradient
            self.bad_steps += 1
            self.bad_steps_in_a_row += 1

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        """Ask for one more validation after the last step, whether or not the interval has come round."""
        if self.trainer.global_step >= self.settings.max_steps:
            self.trainer.should_stop = True

    def on_validation_epoch_start(self) -> None:
        """Forget the sums of the last validation."""
        self._sums = torch.zeros(2, dtype=torch.float64)  # nats and tokens

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> tuple[Tensor, Tensor]:
        """Add one batch of validation windows to the sums; returns its token_losses, for callbacks."""
        losses, likeliest = token_losses(self.model, *batch)
        self._sums += torch.tensor((sum_of_nats(losses), losses.numel()), dtype=torch.float64)
        return losses, likeliest

    def on_validation_epoch_end(self) -> None:
        """Turn the sums of all ranks into an Evaluation."""
        if self.trainer.world_size > 1:
            self._sums = self.trainer.strategy.reduce(self._sums.to(self.device), reduce_op="sum").cpu()
        nats, n_tokens = self._sums.tolist()
        self.evaluation = Evaluation.from_sums(nats, int(n_tokens), self.store.tokens_per_byte("val"))
        self.validated_step = self.trainer.global_step

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """Add what makes the file enough to sample from."""
        data = {"folder": str(self.store.folder), "fingerprint": self.store.fingerprint}
        steps = {"max_steps": self.settings.max_steps, "validated_step": self.validated_step}
        steps["bad_steps"] = [self.bad_steps, self.bad_steps_in_a_row]
        checkpoint["gptmini"] = header(self.model.config, self.store.tokenizer, data=data, **steps)
        checkpoint["state_dict"] = dict(checkpoint["state_dict"])
