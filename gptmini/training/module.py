"""The LightningModule: the loss of a micro-step, the optimizer, and the sums that logging reads."""

import hashlib
from collections.abc import Callable
from functools import partial

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from gptmini.checks import UserError
from gptmini.data.store import TokenStore
from gptmini.evaluation import Evaluation, sum_of_nats, token_losses
from gptmini.model import GPT, training_loss
from gptmini.model.checkpoint import WEIGHTS_PREFIX, TrainingState, header
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
        state: TrainingState | None = None,
    ) -> None:
        """Take the model and how to train it; the store's tokenizer, and where it lies, travel in every checkpoint.

        schedule(step, max_steps=) is a multiple of the peak_lr in the optimizer's groups; seed is dropout's; state is
        what training goes on from, and model the one that it holds.
        Raises UserError: the optimizer refuses its settings, or the state holds that of another optimizer.
        """
        super().__init__()
        self.model = model
        self.store = store
        self.settings = settings
        self.seed = seed
        self.make_optimizer = optimizer
        self.schedule = schedule
        self.compute_loss = partial(torch.compile(training_loss) if compile else training_loss, model)

        self.step_loss: Tensor | None = None  # mean over the micro-steps of the newest optimizer step
        self.grad_norm: Tensor | None = None  # before clipping
        self.evaluation: Evaluation | None = None  # newest
        self.bad_steps = 0 if state is None else state.bad_steps  # not applied: loss or gradient was not finite
        self.bad_steps_in_a_row = 0 if state is None else state.bad_steps_in_a_row
        self.validated_step = 0 if state is None else state.validated_step
        self.moments = {} if state is None else state.optimizer  # that the optimizer starts from, by parameter

        # Bad settings or a foreign state are refused now, before a run folder is made.
        self.peak_lr: float = self.configure_optimizers().param_groups[0]["peak_lr"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the one optimizer, with the moments to go on from; its settings are of the configuration."""
        optimizer = self.make_optimizer(self.model)
        if not self.moments:  # no step was applied yet
            return optimizer

        names = self._names(optimizer)
        if surplus := set(self.moments) - set(names):
            raise UserError(f"the optimizer trains no {surplus.pop()!r}, of which the checkpoint holds its state")
        groups = [group for group in optimizer.param_groups for _ in group["params"]]
        for name, group in zip(names, groups, strict=True):
            self._check_moments(name, MOMENTS[group.get("kind", "adamw")])

        numbered = {i: self.moments[name] for i, name in enumerate(names)}
        optimizer.load_state_dict({"state": numbered, "param_groups": optimizer.state_dict()["param_groups"]})
        return optimizer

    def _names(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """Names of the optimizer's parameters, as in the checkpoint's state_dict, in the order of its groups."""
        name_of = {parameter: f"{WEIGHTS_PREFIX}{name}" for name, parameter in self.model.named_parameters()}
        return [name_of[parameter] for group in optimizer.param_groups for parameter in group["params"]]

    def _check_moments(self, name: str, moments: tuple[str, ...]) -> None:
        """Raise UserError unless a parameter's moments are those of its optimizer, in its shape and dtype."""
        parameter = self.model.get_parameter(name.removeprefix(WEIGHTS_PREFIX))
        wanted = dict.fromkeys(moments, (parameter.shape, parameter.dtype))
        wanted["step"] = (torch.Size(()), torch.float32)
        found = {moment: (tensor.shape, tensor.dtype) for moment, tensor in self.moments.get(name, {}).items()}
        if found != wanted:
            raise UserError(f"the optimizer's state of {name} must be {wanted}, got {found}")

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
        """Turn the sums of all ranks into an Evaluation, and show it to callbacks that watch a metric."""
        if self.trainer.world_size > 1:
            self._sums = self.trainer.strategy.reduce(self._sums.to(self.device), reduce_op="sum").cpu()
        nats, n_tokens = self._sums.tolist()
        self.evaluation = Evaluation.from_sums(nats, int(n_tokens), self.store.tokens_per_byte("val"))
        self.validated_step = self.trainer.global_step

        # For Lightning's callbacks alone, as in trainer.callback_metrics; our loggers are told by Scalars.
        # Every rank has the same figures; without sync_dist Lightning warns that they might differ.
        self.log("val/loss", self.evaluation.loss, logger=False, sync_dist=True)
        self.log("val/bits_per_byte", self.evaluation.bits_per_byte, logger=False, sync_dist=True)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """Add what makes the file enough to sample from, and to go on from with any number of processes."""
        checkpoint["gptmini"] = header(
            self.model.config,
            self.store.tokenizer,
            data={"folder": str(self.store.folder), "fingerprint": self.store.fingerprint},
            max_steps=self.settings.max_steps,
            validated_step=self.validated_step,
            bad_steps=[self.bad_steps, self.bad_steps_in_a_row],
        )
        checkpoint["state_dict"] = dict(checkpoint["state_dict"])

        if "optimizer_states" not in checkpoint:  # as where a callback of the user's saves the weights alone
            return
        # By name: the numbers that torch gives to parameters follow from the groups, and differ between strategies.
        names = self._names(self.optimizers(use_pl_optimizer=False))
        (optimizer,) = checkpoint["optimizer_states"]
        by_name = {names[number]: moments for number, moments in optimizer["state"].items()}
        checkpoint["optimizer_states"] = [{"state": by_name}]
