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
from gptmini.model import GPT, rounded_training_loss, training_loss
from gptmini.model.checkpoint import WEIGHTS_PREFIX, TrainingState, header
from gptmini.optim import leave_out, set_learning_rate
from gptmini.optim.muon import MOMENTS
from gptmini.training.batch_size import check_equal_on_all_ranks
from gptmini.training.outcomes import BadStep, Outcome, Outcomes
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
        precision: str = "fp32",
        state: TrainingState | None = None,
    ) -> None:
        """Take the model and how to train it; the store's tokenizer, and where it lies, travel in every checkpoint.

        compile and precision are as Hardware has them; of the latter only bf16_stream is the module's own business.
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
        self.compute_loss = self._loss_function(compile=compile, rounds_weights=precision == "bf16_stream")

        self.parameters_by_name = dict(model.named_parameters())  # walking through the modules anew takes time
        self.step_loss: Tensor | None = None  # mean over the micro-steps of the newest optimizer step
        self.grad_norm: Tensor | None = None  # before clipping
        self.not_finite: Tensor | None = None  # 1.0 if the newest step is not applied, else 0.0; the same on all ranks
        # What this rank was asked: the number of a signal, 0 for none, and whether its time is over.
        self.stop_request: Callable[[], tuple[int, bool]] = lambda: (0, False)
        self._request: Tensor | None = None  # what all ranks together were asked in the newest step, (2,); None for one
        self.outcomes = Outcomes(late=False)
        self.outcome: Outcome | None = None  # newest that the host knows of
        self.untold: list[BadStep] = []  # bad steps that nobody was told of yet
        self.evaluation: Evaluation | None = None  # newest
        self.bad_steps = 0 if state is None else state.bad_steps  # not applied: loss or gradient was not finite
        self.bad_steps_in_a_row = 0 if state is None else state.bad_steps_in_a_row
        self.validated_step = 0 if state is None else state.validated_step
        self.moments = {} if state is None else state.optimizer  # that the optimizer starts from, by parameter

        # Bad settings or a foreign state are refused now, before a run folder is made.
        self.peak_lr: float = self.configure_optimizers().param_groups[0]["peak_lr"]

    def _loss_function(self, *, compile: bool, rounds_weights: bool) -> Callable[[Tensor, Tensor], Tensor]:
        """What computes the loss of a micro-batch; it alone is compiled, once, for the one shape that it is given."""
        loss = partial(training_loss, self.model)
        if rounds_weights:
            loss = rounded_training_loss(self.model, torch.bfloat16)
        if compile:
            # Validation and samples come in other shapes; they stay eager, so that nothing is compiled again for them.
            # What earlier runs of this process compiled is dropped: torch keeps eight graphs of one function at most.
            torch.compiler.reset()
            loss = torch.compile(loss, dynamic=False, fullgraph=True)
        if not rounds_weights:
            return loss

        def without_autocast(tokens: Tensor, targets: Tensor) -> Tensor:
            with torch.autocast(tokens.device.type, enabled=False):
                return loss(tokens, targets)

        return without_autocast

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
        name_of = {parameter: f"{WEIGHTS_PREFIX}{name}" for name, parameter in self.parameters_by_name.items()}
        return [name_of[parameter] for group in optimizer.param_groups for parameter in group["params"]]

    def _check_moments(self, name: str, moments: tuple[str, ...]) -> None:
        """Raise UserError unless a parameter's moments are those of its optimizer, in its shape and dtype."""
        parameter = self.model.get_parameter(name.removeprefix(WEIGHTS_PREFIX))
        wanted = dict.fromkeys(moments, (parameter.shape, parameter.dtype))
        wanted["step"] = (torch.Size(()), torch.float32)
        found = {moment: (tensor.shape, tensor.dtype) for moment, tensor in self.moments.get(name, {}).items()}
        if found != wanted:
            raise UserError(f"the optimizer's state of {name} must be {wanted}, got {found}")

    def on_fit_start(self) -> None:
        """Read each step late on a CUDA GPU, at once elsewhere; UserError unless all ranks cut the same batches."""
        self.outcomes = Outcomes(late=self.device.type == "cuda")
        if self.trainer.world_size > 1:
            check_equal_on_all_ranks(self.settings.batch_size, self.device)

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

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, **limits: None) -> None:
        """Clip by the norm of the whole gradient, keep that norm, and have a step that is not finite left out.

        The host does not wait to learn whether it is: the optimizer itself reads the flag, on the device.
        """
        # Ours, because Lightning's own refuses a fused optimizer under mixed precision and drops the norm.
        parameters = self.parameters_by_name.values()
        if self.settings.gradient_clip is None:
            self.grad_norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        else:
            self.grad_norm = clip_grad_norm_(parameters, self.settings.gradient_clip)

        finite = torch.isfinite(self.grad_norm) & torch.isfinite(self.step_loss)
        self.not_finite = (~finite).float()
        self._request = None
        if self.trainer.world_size > 1:
            self._agree()
        leave_out(optimizer, self.not_finite)

    def _agree(self) -> None:
        """Have all ranks leave out a step that is not finite on one of them, and stop when one of them is asked to."""
        # One rank's loss may be infinite where the common gradient is not. One all-reduce serves both questions.
        on_cuda = self.device.type == "cuda"
        request = torch.tensor(self.stop_request(), dtype=torch.float32, pin_memory=on_cuda)
        flags = torch.cat((self.not_finite.unsqueeze(0), request.to(self.device, non_blocking=True)))  # (3,)
        torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)  # Lightning's own adds a barrier
        self.not_finite, self._request = flags[0], flags[1:]

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer, *closure: object) -> None:
        """Step, free the gradients, and count what came of the steps that the host knows of by now."""
        super().optimizer_step(epoch, batch_idx, optimizer, *closure)
        optimizer.zero_grad()  # now: Lightning would keep the gradients through the next forward pass
        self.outcomes.send(self.trainer.global_step + 1, self.not_finite, self.step_loss, self.grad_norm, self._request)
        self._count(self.outcomes.receive())

    def optimizer_zero_grad(self, *position: object) -> None:
        """Do nothing where Lightning would free the gradients: that was done after the step before."""

    def settle(self) -> None:
        """Wait for the newest step, and count what came of it."""
        self._count(self.outcomes.receive(newest=True))

    def _count(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self.outcome = outcome
            if outcome.bad:
                self.bad_steps += 1
                self.bad_steps_in_a_row += 1
                self.untold.append(BadStep(outcome, n_so_far=self.bad_steps, n_in_a_row=self.bad_steps_in_a_row))
            else:
                self.bad_steps_in_a_row = 0

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        """Ask for one more validation after the last step, whether or not the interval has come round."""
        if self.trainer.global_step >= self.settings.max_steps:
            self.trainer.should_stop = True

    def on_validation_epoch_start(self) -> None:
        """Forget the sums of the last validation."""
        self._nats: Tensor | float = 0.0  # on the device until the end: reading it would keep a GPU waiting
        self._n_tokens = 0

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> tuple[Tensor, Tensor]:
        """Add one batch of validation windows to the sums; returns its token_losses, for callbacks."""
        losses, likeliest = token_losses(self.model, *batch)
        self._nats = self._nats + sum_of_nats(losses)
        self._n_tokens += losses.numel()
        return losses, likeliest

    def on_validation_epoch_end(self) -> None:
        """Turn the sums of all ranks into an Evaluation, and show it to callbacks that watch a metric."""
        sums = torch.tensor((float(self._nats), self._n_tokens), dtype=torch.float64)
        if self.trainer.world_size > 1:
            sums = self.trainer.strategy.reduce(sums.to(self.device), reduce_op="sum").cpu()
        nats, n_tokens = sums.tolist()
        self.evaluation = Evaluation.from_sums(nats, int(n_tokens), self.store.tokens_per_byte("val"))
        self.validated_step = self.trainer.global_step

        # For Lightning's callbacks alone, as in trainer.callback_metrics; our loggers are told by Scalars.
        # Every rank has the same figures; without sync_dist Lightning warns that they might differ.
        self.log("val/loss", self.evaluation.loss, logger=False, sync_dist=True)
        self.log("val/bits_per_byte", self.evaluation.bits_per_byte, logger=False, sync_dist=True)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """Add what makes the file enough to sample from, and to go on from with any number of processes."""
        self.settle()
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
