"""The LightningModule: one optimizer step from its micro-batches to the figures that are logged.

One step, in the order in which Lightning calls the hooks of GPTModule:

    on_train_batch_start         seed dropout; under FSDP2, put off reducing gradients until the last micro-step
    training_step                the loss of one micro-batch, whose share is added to step_loss
    (Lightning)                  backward of loss / micro-steps; in the last one, gradients are averaged over all ranks
    on_before_optimizer_step     set the learning rate
    configure_gradient_clipping  grad_norm, and clip; all ranks agree on step_loss, on not_finite and on a request to
                                 stop; the optimizer is told to change nothing in a step that is not finite
    (the optimizer)              change weights and moments
    optimizer_step               all of the last micro-step, from training_step on, happens inside of it; then free the
                                 gradients, send the figures to the host, and count those that have arrived: of this
                                 step on a CPU, of the one before on a GPU, so that the GPU need not wait
    on_train_batch_end           callbacks first: Scalars logs step_loss and grad_norm, Stopping tells of steps left out
                                 and stops, RunCheckpoints saves; then a validation if it is due, or the end
"""

import hashlib
from collections.abc import Callable
from functools import partial

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from gptmini.checkpoint.file import header
from gptmini.checkpoint.training_state import TrainingState
from gptmini.data.batches import NOT_COUNTED
from gptmini.data.store import TokenStore, tokens_per_byte_of
from gptmini.evaluation import Evaluation, Tally, token_losses
from gptmini.model import GPT, training_loss
from gptmini.optim import leave_out, set_learning_rate
from gptmini.training.devices import distributed
from gptmini.training.devices.recomputing import recompute_activations
from gptmini.training.moments import Moments, restore_moments, whole_moments
from gptmini.training.outcomes import Outcomes
from gptmini.training.settings import Settings


class GPTModule(L.LightningModule):
    """Trains a GPT: automatic optimization, a learning rate and random draws that follow from the step alone.

    Args:
        model: the GPT to train; with a state, the model of that state.
        store: the tokens. Their tokenizer, and the folder that they lie in, are written into every checkpoint.
        settings: of the run. trainer.batch_size must be a number; each group of the optimizer has a peak_lr;
            schedule(step, max_steps=) returns the multiple of peak_lr that is the learning rate of a step. Of the
            precisions the module itself implements only bf16_stream; the autocast of bf16 is Lightning's.
        state: what training goes on from; None to start from the first step.
        origin: path and step of the weights that the run began with, for every checkpoint; None for new ones.

    Raises UserError: the optimizer refuses its settings.
    """

    # Figures of the newest optimizer step. They stay on the device, so that the host need not wait for them.
    # Mean over the micro-steps, and once the step is done over all ranks, in nats per token.
    step_loss: Tensor
    grad_norm: Tensor  # norm of the whole gradient before clipping
    # 1.0 if the step is not applied, because some rank's loss or gradient is not finite; else 0.0.
    not_finite: Tensor
    # What all ranks together were asked, (2,): the number of a signal and whether time is over; zeros for one rank.
    _request: Tensor

    def __init__(
        self,
        model: GPT,
        store: TokenStore,
        settings: Settings,
        *,
        state: TrainingState | None = None,
        origin: dict | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.store = store
        self.settings = settings.trainer
        self.make_optimizer: Callable[[GPT], torch.optim.Optimizer] = settings.optimizer.build
        self.schedule = settings.schedule
        self.seed = settings.root.seed
        self.compiles = settings.hardware.compile
        self.precision = settings.hardware.precision
        self.origin = origin
        if self.settings.checkpoint_activations:
            recompute_activations(model)
        self.compute_loss = self._loss_function()
        # Kept, because named_parameters walks through all modules, which would take time in every step.
        self.parameters_by_name = dict(model.named_parameters())

        # What this rank was asked: the number of a signal, 0 for none, and whether its time is over.
        self.stop_request: Callable[[], tuple[int, bool]] = lambda: (0, False)
        self.evaluation: Evaluation | None = None  # of the newest validation; None before the first

        # What goes on in a resumed run: what the host knows of the steps, the newest step that a validation followed,
        # and the optimizer's moments, by the name of their parameter in a checkpoint's state_dict.
        self.outcomes = Outcomes()
        self.validated_step = 0
        self.moments: Moments = {}
        if state is not None:
            self.outcomes = Outcomes(state.bad_steps, state.bad_steps_in_a_row)
            self.validated_step = state.validated_step
            self.moments = state.optimizer

        # An optimizer is built here too, so that settings which it refuses are told before a run folder is made.
        self.peak_lr: float = self.make_optimizer(model).param_groups[0]["peak_lr"]

    def _loss_function(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the function that computes the loss of a micro-batch: tokens and targets, (B, T) each, to a scalar.

        Only this function is compiled, for the one shape of the micro-batches. Validation and samples have other shapes
        and stay eager, so that nothing is compiled again for them.
        """
        counted_share = self.store.counted_share
        if self.settings.strategy == "fsdp2":
            # Compiled block by block, with weights that are rounded where they are gathered: see distributed.shard.
            return partial(training_loss, self.model, counted_share=counted_share)

        is_stream = self.precision == "bf16_stream"
        loss = partial(
            training_loss,
            self.model,
            dtype=torch.bfloat16 if is_stream else None,
            counted_share=counted_share,
        )
        if self.compiles:
            # Torch keeps at most eight graphs of a function: those of earlier runs of this process are dropped.
            torch.compiler.reset()
            loss = torch.compile(loss, dynamic=False, fullgraph=True)
        if not is_stream:
            return loss

        def without_autocast(tokens: Tensor, targets: Tensor) -> Tensor:
            # Lightning's autocast is for validation.
            with torch.autocast(tokens.device.type, enabled=False):
                return loss(tokens, targets)

        return without_autocast

    def configure_model(self) -> None:
        """Divide the weights among the devices of FSDP2; Lightning calls this once the devices know each other."""
        if self.device_mesh is None:  # of another strategy
            return
        distributed.shard(
            self.model,
            self.device_mesh["data_parallel"],
            precision=self.precision,
            compile=self.compiles,
        )
        self.parameters_by_name = dict(self.model.named_parameters())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the one optimizer, with the configuration's settings and the moments that a run goes on from."""
        optimizer = self.make_optimizer(self.model)
        restore_moments(self.moments, optimizer, self.parameters_by_name)
        self.moments = {}  # the optimizer has them now
        return optimizer

    def on_train_start(self) -> None:
        """Share the work of Muon among several devices."""
        self._request = torch.zeros(2, device=self.device)  # (2,)
        (optimizer,) = self.trainer.optimizers
        distributed.share_matrices(optimizer, self.model, self.device, self.trainer.world_size)

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Seed dropout from its position: hash(seed, step, micro-step, rank); reduce gradients once a step."""
        n_micro_steps = self.trainer.accumulate_grad_batches
        micro_step = batch_idx % n_micro_steps
        distributed.before_micro_step(self.model, is_last=micro_step == n_micro_steps - 1)
        if not self.model.config.dropout:
            return

        position = (self.seed, self.trainer.global_step, micro_step, self.global_rank)
        digest = hashlib.blake2b(repr(position).encode(), digest_size=8).digest()
        torch.manual_seed(int.from_bytes(digest, "little"))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of one micro-step, in nats per token; Lightning divides it by the number of micro-steps."""
        loss = self.compute_loss(*batch)

        # Micro-batches hold equally many tokens, so the loss of a step is the plain mean of theirs.
        n_micro_steps = self.trainer.accumulate_grad_batches
        share = loss.detach() / n_micro_steps
        is_first = batch_idx % n_micro_steps == 0
        self.step_loss = share if is_first else self.step_loss + share
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rate of this step."""
        multiplier = self.schedule(self.trainer.global_step, max_steps=self.settings.max_steps)
        set_learning_rate(optimizer, multiplier)

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, **limits: None) -> None:
        """Clip the gradient by the norm of the whole of it, keep that norm, and leave out a step that is not finite.

        The host does not wait to learn whether the step is finite: the optimizer reads the flag on the device.
        Lightning's own clipping is not used, because it refuses a fused optimizer under mixed precision and drops the
        norm. limits are Lightning's settings for it, which gptmini does not set.
        """
        parameters = self.parameters_by_name.values()
        if self.settings.gradient_clip is None:
            norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        else:
            norm = clip_grad_norm_(parameters, self.settings.gradient_clip)
        self.grad_norm = distributed.gathered(norm)

        finite = torch.isfinite(self.grad_norm) & torch.isfinite(self.step_loss)
        self.not_finite = (~finite).float()
        if self.trainer.world_size > 1:
            self._agree()
        leave_out(optimizer, self.not_finite)

    def _agree(self) -> None:
        """Have all ranks know the mean loss, leave out a step that is bad on one of them, and stop if one is asked.

        Ranks share the gradient but not the loss, which may be infinite on one of them alone. Every rank sums its
        curves from the same losses, so that a checkpoint, which holds the first rank's sums, holds those of all.
        """
        on_cuda = self.device.type == "cuda"
        request = torch.tensor(self.stop_request(), dtype=self.step_loss.dtype, pin_memory=on_cuda)
        request = request.to(self.device, non_blocking=True)  # (2,)
        own = torch.stack((self.step_loss, self.not_finite.to(request), *request))
        own = own.unsqueeze(0)  # (1, 4)

        # One collective for all of this. It is torch's own, because Lightning's adds a barrier; all_gather is the one
        # that torch 2.11 has and torch 2.13 does not deprecate.
        of_ranks = [torch.empty_like(own) for _ in range(self.trainer.world_size)]
        torch.distributed.all_gather(of_ranks, own)
        all_ranks = torch.cat(of_ranks)  # (ranks, 4)

        self.step_loss = all_ranks[:, 0].mean()
        self.not_finite = all_ranks[:, 1].amax().float()
        self._request = all_ranks[:, 2:].amax(dim=0).float()  # (2,)

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: torch.optim.Optimizer,
        optimizer_closure: Callable[[], object] | None = None,
    ) -> None:
        """Step, free the gradients, and send the figures of the step to the host."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        # Lightning itself would keep the gradients through the next forward pass.
        optimizer.zero_grad()

        loss = self.step_loss.float()
        grad_norm = self.grad_norm.float()
        figures = torch.stack((self.not_finite, loss, grad_norm, *self._request))  # (5,)
        self.outcomes.send(self.trainer.global_step + 1, figures)

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        """Ask for one more validation after the last step, whether or not the interval has come round."""
        if self.trainer.global_step >= self.settings.max_steps:
            self.trainer.should_stop = True

    def on_validation_epoch_start(self) -> None:
        """Set the sums of a validation to zero."""
        self._tally = Tally()

    def validation_step(
        self, batch: tuple[Tensor, Tensor], batch_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Add one batch of validation windows to the sums.

        Returns the loss of each target in nats, and the id that the model held likeliest there, (B, T) each, for
        callbacks.
        """
        tokens, targets = batch
        with distributed.eagerly(self.model):
            if not targets.numel():
                # A batch that keeps this device in step with others, which have one more to compute together.
                self.model.hidden(tokens)
                return targets.float(), targets
            losses, likeliest = token_losses(self.model, tokens, targets)

        self._tally.add(losses, (targets != NOT_COUNTED).sum())
        return losses, likeliest

    def on_validation_epoch_end(self) -> None:
        """Turn the sums of all ranks into an Evaluation, and show it to callbacks that watch a metric."""
        distributed.after_validation(self.model)
        tally = self._tally
        if self.trainer.world_size > 1:
            sums = (float(tally.nats), int(tally.n_tokens))
            own = torch.tensor(sums, dtype=torch.float64)  # (2,)
            of_all = self.trainer.strategy.reduce(own.to(self.device), reduce_op="sum")
            nats, n_tokens = of_all.tolist()
            tally = Tally(nats, int(n_tokens))

        tokens_per_byte = tokens_per_byte_of(self.store.excerpts("val", self.settings.val_tokens))
        self.evaluation = tally.evaluation(tokens_per_byte)
        self.validated_step = self.trainer.global_step

        # These are for callbacks that read trainer.callback_metrics; the loggers of a run are told by Scalars.
        # All ranks have equal figures already, but without sync_dist Lightning warns that they might differ.
        self.log("val/loss", self.evaluation.loss, logger=False, sync_dist=True)
        self.log("val/bits_per_byte", self.evaluation.bits_per_byte, logger=False, sync_dist=True)

    def whole_model(self) -> GPT | None:
        """The model with all its weights on the first process, for callbacks that sample from it; None on the others.

        Every process must call this. Under FSDP2 the weights are copied; otherwise this is the model itself.
        """
        return distributed.whole_model(self.model, keep=self.trainer.is_global_zero)

    @property
    def newest_evaluation(self) -> Evaluation:
        """The evaluation of the newest validation, for callbacks that are called at its end."""
        assert self.evaluation is not None
        return self.evaluation

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """Add what makes the file enough to sample from, and to go on from with any number of processes; collective."""
        self.outcomes.settle()
        origin = {} if self.origin is None else {"init_from": self.origin}
        checkpoint["gptmini"] = header(
            self.model.config,
            self.store.tokenizer_state,
            **origin,
            data={"folder": str(self.store.folder), "fingerprint": self.store.fingerprint},
            max_steps=self.settings.max_steps,
            validated_step=self.validated_step,
            bad_steps=[self.outcomes.bad_steps, self.outcomes.bad_steps_in_a_row],
        )
        checkpoint["state_dict"] = dict(checkpoint["state_dict"])

        # There is no optimizer state where a user's callback saves the weights alone.
        if "optimizer_states" in checkpoint:
            (optimizer,) = self.trainer.optimizers
            moments = whole_moments(optimizer, self.parameters_by_name)
            checkpoint["optimizer_states"] = [{"state": moments}]
