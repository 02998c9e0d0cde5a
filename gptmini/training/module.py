"""The LightningModule. It computes each optimizer step, from the micro-batches of the step to its metrics.

Lightning calls the hooks of GPTModule in this order:

    training_step                Compute the loss of one micro-batch. Add loss / micro-steps to step_loss. Under FSDP2,
                                 delay the gradient reduction until the last micro-step.
    (Lightning)                  Run the backward pass of loss / micro-steps. The last micro-step averages the gradients
                                 over all ranks.
    on_before_optimizer_step     Set the learning rate.
    configure_gradient_clipping  Compute grad_norm and clip the gradient. All ranks agree on step_loss, on not_finite
                                 and on a stop request. Make the optimizer skip a step that is not finite.
    (the optimizer)              Update the weights and the optimizer state.
    optimizer_step               Run the last micro-step inside this hook, from training_step to the optimizer. Then
                                 free the gradients, send the metrics to the host, and read the metrics that have
                                 arrived. On a CPU, the metrics of this step have arrived. On a GPU, only the metrics of
                                 the previous step are read, because the GPU must not wait.
    on_train_batch_end           Run the callbacks. Scalars logs step_loss and grad_norm. BadSteps reports skipped
                                 steps. Stopping stops the run. RunCheckpoints saves a checkpoint. Afterwards, a
                                 validation runs if it is due, or the training ends.
"""

import math
from collections.abc import Callable
from functools import partial

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from gptmini.checkpoint import TrainingState, header
from gptmini.data import NOT_COUNTED, TokenStore, sequence_keys, step_sequences, tokens_per_byte_of
from gptmini.evaluation import Evaluation, Tally, token_losses
from gptmini.model import GPT, training_loss
from gptmini.optim import exchange_averages, set_learning_rate, skip_step_if, update_average
from gptmini.system.hardware import Hardware
from gptmini.training.devices import distributed
from gptmini.training.devices.recomputing import recompute_activations
from gptmini.training.optimizer_state import (
    Moments,
    gather_optimizer_state,
    restore_optimizer_state,
    use_averages,
)
from gptmini.training.settings import Settings
from gptmini.training.step_reports import StepReports


class GPTModule(L.LightningModule):
    """A GPT in training. Lightning's automatic optimization runs its optimizer steps.

    The learning rate depends only on the step. The dropout of a sequence depends only on the seed and on the number of
    the sequence in the run.

    Args:
        model: the GPT to train. If a state is given, model must be the model of the state.
        store: the tokens.
        settings: settings of the run. trainer.batch_size must be a number. Each optimizer group must have a peak_lr.
            The learning rate of a step is peak_lr * schedule(step, max_steps=).
        hardware: the device, the precision and whether to compile the loss.
        state: the state to resume from; None to start from the first step.
        origin: the path, the step and the optimizer of the model that provided the initial weights; None for new
            weights. Every checkpoint stores the origin.

    Raises UserError if a setting of the optimizer is not valid.
    """

    # Metrics of the latest optimizer step. The metrics stay on the device, so the host does not wait for them.
    # The mean loss over the micro-steps, in nats per token. At the end of the step, it is also the mean over all ranks.
    step_loss: Tensor
    grad_norm: Tensor  # norm of the full gradient before clipping
    # 1.0 if the step is skipped because the loss or the gradient of some rank is not finite; otherwise 0.0.
    not_finite: Tensor
    # The combined stop request of all ranks, (2,). The first value is the number of the signal. The second value is 1
    # if the time limit must end the run. Both values are 0 if the run has a single rank.
    _request: Tensor

    def __init__(
        self,
        model: GPT,
        store: TokenStore,
        settings: Settings,
        hardware: Hardware,
        *,
        state: TrainingState | None = None,
        origin: dict | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.store = store
        self.settings = settings.trainer
        self.optimizer_name = type(settings.optimizer).__name__
        self.make_optimizer: Callable[[GPT], torch.optim.Optimizer] = settings.optimizer.build
        self.schedule = settings.schedule
        self.seed = settings.root.seed
        self.hardware = hardware
        self.origin = origin

        if self.settings.checkpoint_activations:
            recompute_activations(model)
        self.compute_loss = self._loss_function()
        # named_parameters walks through all modules. Calling it in every step would be slow.
        self.parameters_by_name = dict(model.named_parameters())

        # Returns the stop request of this rank. The request is the number of the signal (0: no signal), and whether
        # the time limit must end the run.
        self.stop_request: Callable[[], tuple[int, bool]] = lambda: (0, False)
        # Result of the latest validation. The loss is NaN before the first validation.
        self.evaluation = Evaluation(loss=math.nan, n_tokens=0, bits_per_byte=math.nan)

        # A resumed run restores its counts of bad steps, the latest step that was followed by a validation, and the
        # optimizer state. The keys of the optimizer state are the parameter names in the state_dict of the checkpoint.
        self.step_reports = StepReports()
        self.validated_step = 0
        self.moments: Moments = {}
        if state is not None:
            self.step_reports = StepReports(state.bad_steps, state.bad_steps_in_a_row)
            self.validated_step = state.validated_step
            self.moments = state.optimizer

        # Build an optimizer here, too. So bad settings are rejected before the run folder is created.
        self.peak_lr: float = self.make_optimizer(model).param_groups[0]["peak_lr"]

    def _loss_function(self) -> Callable[..., Tensor]:
        """Return the function that maps tokens and targets, (B, T) each, and keys of dropout, (B,), to a scalar.

        Only this function is compiled. torch would compile a function again for each shape of a validation or a sample.
        """
        counted_share = self.store.counted_share
        if self.settings.strategy == "fsdp2":
            # distributed.shard compiles each block. FSDP2 rounds the weights when it gathers them.
            return partial(training_loss, self.model, counted_share=counted_share)

        is_stream = self.hardware.precision == "bf16_stream"
        loss = partial(
            training_loss,
            self.model,
            dtype=torch.bfloat16 if is_stream else None,
            counted_share=counted_share,
        )
        if self.hardware.compile:
            loss = torch.compile(loss, dynamic=False, fullgraph=True)
        if not is_stream:
            return loss

        def without_autocast(tokens: Tensor, targets: Tensor, keys: Tensor | None) -> Tensor:
            # With this precision, Lightning's autocast is used only for validation.
            with torch.autocast(tokens.device.type, enabled=False):
                return loss(tokens, targets, keys)

        return without_autocast

    def configure_model(self) -> None:
        """Shard the weights under FSDP2. Lightning calls this method after it has created the process group."""
        if self.device_mesh is None:  # the strategy is not FSDP2
            return
        distributed.shard(
            self.model,
            self.device_mesh["data_parallel"],
            precision=self.hardware.precision,
            compile=self.hardware.compile,
        )
        self.parameters_by_name = dict(self.model.named_parameters())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the optimizer with the configured settings. In a resumed run, restore the optimizer state."""
        optimizer = self.make_optimizer(self.model)
        restore_optimizer_state(self.moments, optimizer, self.parameters_by_name)
        self.moments = {}  # the optimizer has the state now
        exchange_averages(optimizer)  # a checkpoint has the average in place of the weights
        return optimizer

    def on_train_start(self) -> None:
        """Divide the orthogonalization of Muon among the devices."""
        self._request = torch.zeros(2, device=self.device)  # (2,)
        (optimizer,) = self.trainer.optimizers
        distributed.share_matrices(optimizer, self.model, self.device, self.trainer.world_size)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of one micro-step in nats per token. Lightning divides it by the number of micro-steps."""
        n_micro_steps = self.trainer.accumulate_grad_batches
        micro_step = batch_idx % n_micro_steps
        distributed.before_micro_step(self.model, is_last=micro_step == n_micro_steps - 1)
        loss = self.compute_loss(*batch, self._dropout_keys(micro_step))

        # All micro-batches have the same number of tokens. So the loss of the step is the mean of the losses of its
        # micro-batches.
        share = loss.detach() / n_micro_steps
        self.step_loss = share if micro_step == 0 else self.step_loss + share
        return loss

    def _dropout_keys(self, micro_step: int) -> Tensor | None:
        """Return the keys of the sequences in a micro-batch, int32 (B,). Return None if the model has no dropout."""
        if not self.model.config.dropout:
            return None

        sequences = step_sequences(
            self.trainer.global_step,
            micro_step,
            global_batch_size=self.settings.global_batch_size,
            batch_size=self.settings.micro_batch_size,
            rank=self.trainer.global_rank,
            n_ranks=self.trainer.world_size,
        )
        keys = torch.from_numpy(sequence_keys(sequences, seed=self.seed))
        return keys.to(self.device, non_blocking=True)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rate of this step."""
        multiplier = self.schedule(self.trainer.global_step, max_steps=self.settings.max_steps)
        set_learning_rate(optimizer, multiplier)

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, **limits: None) -> None:
        """Clip the gradient by its global norm, store the norm, and skip the step if its metrics are not finite.

        The optimizer reads the flag not_finite on the device, so the host does not wait. Lightning's own clipping
        rejects a fused optimizer under mixed precision, and it does not return the norm.
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
        skip_step_if(optimizer, self.not_finite)

    def _agree(self) -> None:
        """Average the loss over all ranks. If any rank must skip the step or stop, all ranks do.

        Before this call, all ranks have the same gradient but different losses. Afterwards, they also have the same
        loss. Therefore, a checkpoint can store the sums of Scalars of the first rank for all ranks.
        """
        on_cuda = self.device.type == "cuda"
        request = torch.tensor(self.stop_request(), dtype=self.step_loss.dtype, pin_memory=on_cuda)
        request = request.to(self.device, non_blocking=True)  # (2,)
        values = torch.stack((self.step_loss, self.not_finite.to(request), *request))
        values = values.unsqueeze(0)  # (1, 4)

        # One collective exchanges all values. Lightning's all_gather adds a barrier, so call torch's all_gather.
        # torch's all_gather exists in torch 2.11 and is not deprecated in torch 2.13.
        of_ranks = [torch.empty_like(values) for _ in range(self.trainer.world_size)]
        torch.distributed.all_gather(of_ranks, values)
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
        """Do the optimizer step, free the gradients, and send the metrics of the step to the host."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        # Lightning would keep the gradients through the next forward pass.
        optimizer.zero_grad()
        if self.settings.ema_steps is not None:
            step = self.trainer.global_step
            update_average(optimizer, step=step, ema_steps=self.settings.ema_steps)

        loss = self.step_loss.float()
        grad_norm = self.grad_norm.float()
        metrics = torch.stack((self.not_finite, loss, grad_norm, *self._request))  # (5,)
        self.step_reports.send(self.trainer.global_step + 1, metrics)

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        """Request a final validation after the last step, even if the interval of validations does not end there."""
        if self.trainer.global_step >= self.settings.max_steps:
            self.trainer.should_stop = True

    def on_validation_start(self) -> None:
        """Put the average of the weights in their place, and reset the sums. Callbacks sample from it and save it."""
        exchange_averages(self.trainer.optimizers[0])
        self._tally = Tally()

    def on_validation_end(self) -> None:
        """Put the weights back. Lightning calls the callbacks before this method."""
        exchange_averages(self.trainer.optimizers[0])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add the losses of one batch of validation windows to the sums."""
        tokens, targets = batch
        with distributed.eagerly(self.model):
            if not targets.numel():
                # Other devices have one more batch than this device. Under FSDP2, all devices must compute a batch
                # together, so this device runs the model on a batch without targets.
                self.model.hidden(tokens)
                return
            losses = token_losses(self.model, tokens, targets)

        self._tally.add(losses, (targets != NOT_COUNTED).sum())

    def on_validation_epoch_end(self) -> None:
        """Compute an Evaluation from the sums of all ranks, and log the results for callbacks that monitor a metric."""
        distributed.after_validation(self.model)
        tally = self._tally
        if self.trainer.world_size > 1:
            sums = (float(tally.nats), int(tally.n_tokens))
            of_rank = torch.tensor(sums, dtype=torch.float64)  # (2,)
            of_all = self.trainer.strategy.reduce(of_rank.to(self.device), reduce_op="sum")
            nats, n_tokens = of_all.tolist()
            tally = Tally(nats, int(n_tokens))

        tokens_per_byte = tokens_per_byte_of(self.store.excerpts("val", self.settings.val_tokens))
        self.evaluation = tally.evaluation(tokens_per_byte)
        self.validated_step = self.trainer.global_step

        # Log these values for callbacks that read trainer.callback_metrics. The callback Scalars logs the values to the
        # loggers of the run. All ranks already have equal values, but Lightning warns about different values on the
        # ranks unless sync_dist is set.
        self.log("val/loss", self.evaluation.loss, logger=False, sync_dist=True)
        self.log("val/bits_per_byte", self.evaluation.bits_per_byte, logger=False, sync_dist=True)

    @property
    def tokens_per_step(self) -> int:
        """The number of training tokens of an optimizer step, over all devices."""
        return self.settings.global_batch_size * self.model.config.context_length

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """Add the data for sampling and for resuming with any number of processes. Every process must call this."""
        self.step_reports.wait()
        origin = {} if self.origin is None else {"init_from": self.origin}
        is_trained = self.trainer.global_step > 0  # otherwise, the weights are those of the origin
        checkpoint["gptmini"] = header(
            self.model.config,
            self.store.tokenizer_state,
            **origin,
            optimizer=self.optimizer_name if is_trained else (self.origin or {}).get("optimizer"),
            data={"folder": str(self.store.folder), "fingerprint": self.store.fingerprint},
            max_steps=self.settings.max_steps,
            validated_step=self.validated_step,
            bad_steps=[self.step_reports.bad_steps, self.step_reports.bad_steps_in_a_row],
        )
        checkpoint["state_dict"] = dict(checkpoint["state_dict"])

        # There is no optimizer state if a user's callback saves only the weights.
        if "optimizer_states" in checkpoint:
            (optimizer,) = self.trainer.optimizers
            moments = gather_optimizer_state(optimizer, self.parameters_by_name)
            checkpoint["optimizer_states"] = [{"state": moments}]
            if not self.trainer.validating:  # a validation has put the averages in place
                use_averages(checkpoint["state_dict"], moments)
