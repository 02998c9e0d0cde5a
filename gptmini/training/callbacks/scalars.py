"""Log the scalars of a run: loss, gradients, weights and speed every few steps, and the loss of each validation."""

import math
import time

import lightning as L
import torch
from pydantic import PositiveFloat, PositiveInt, validate_call
from torch import Tensor
from torch.optim import Optimizer

from gptmini.settings import STRICT
from gptmini.system.hardware import peak_flops, peak_memory, wait_for
from gptmini.training.callbacks.measures import StepTimes, norms, weights_by_kind
from gptmini.training.loggers.logger import log
from gptmini.training.module import GPTModule


class Scalars(L.Callback):
    """A callback that logs loss, gradients, weights and speed of some optimizer steps, and the loss of each validation.

    The callback logs the first step, each step before a validation, and each multiple of every_steps. train/loss and
    weights/clipped are means, and work/tokens_per_second is the speed, over all steps since the last logged step.

    For work/mfu, peak_tflops is the peak speed of one device in 10^12 operations per second, or None for the number of
    its vendor.
    """

    @validate_call(config=STRICT)
    def __init__(
        self, *, every_steps: PositiveInt, peak_tflops: PositiveFloat | None = None
    ) -> None:
        self.every_steps = every_steps
        self.peak_tflops = peak_tflops

        self.train_loss: float | None = None  # latest point of train/loss
        # Time at which the last micro-step ended; None at the start of the run and after a validation.
        self._ended: float | None = None
        self._times: StepTimes | None = None  # stopwatch of the current step, if it will be logged
        self._validated = False  # whether a validation ran since the last micro-step
        self._start_interval()

    def state_dict(self) -> dict:
        """Return the sums since the last logged step, and the latest point of train/loss, for all ranks."""
        return {
            "loss": float(self._losses),
            "steps": int(self._steps),
            "clipped": int(self._clipped),
            "train_loss": self.train_loss,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore the state that state_dict() returned."""
        self._losses = state["loss"]
        self._steps = state["steps"]
        self._clipped = state["clipped"]
        self.train_loss = state["train_loss"]

    def on_train_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Look up the constants of the run, and start to time the first step."""
        self._flops_per_token = pl_module.model.flops_per_token
        if self.peak_tflops is None:
            peak = peak_flops(pl_module.device, pl_module.hardware.precision)
        else:
            peak = 1e12 * self.peak_tflops
        # The peak speed of all devices together.
        self._peak = None if peak is None else peak * trainer.world_size
        self._begin_step(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: GPTModule, batch: tuple, batch_idx: int
    ) -> None:
        """End the data phase. If a validation ran since the last micro-step, its time does not count as data phase."""
        self._mark("between" if self._validated else "data")
        self._validated = False

    def on_before_backward(self, trainer: L.Trainer, pl_module: GPTModule, loss: Tensor) -> None:
        """End the forward phase."""
        self._mark("forward")

    def on_after_backward(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """End the backward phase."""
        self._mark("backward")

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: GPTModule, optimizer: Optimizer
    ) -> None:
        """Copy the weights if the step will be logged. The time for copying does not count for any phase."""
        if self._times is None:
            return
        for kind, weights in weights_by_kind(pl_module.model).items():
            self._before[kind] = [weight.clone() for weight in weights]
        self._mark("copy")

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: GPTModule,
        outputs: object,
        batch: tuple,
        batch_idx: int,
    ) -> None:
        """End the optimizer phase, count the micro-step, and log the step if it is due."""
        self._mark("optimizer")
        step_done = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        validation_follows = step_done and pl_module.settings.validation_due(trainer.global_step)

        # A GPU runs behind the host. The host waits for the GPU only when the measured interval starts or ends.
        interval_begins = self._ended is None
        interval_ends = self._times is not None or validation_follows
        if interval_begins or interval_ends:
            wait_for(pl_module.device)
        now = time.perf_counter()
        if self._ended is not None:
            self._seconds += now - self._ended
            self._tokens += batch[0].numel() * trainer.world_size
        self._ended = now

        if not step_done:
            return
        self._count_step(pl_module)
        if self._due(trainer.global_step, pl_module):
            metrics = self._training_metrics(trainer, pl_module)
            log(trainer, metrics | self._weight_metrics(pl_module) | self._work_metrics(pl_module))
            self._start_interval()
            self._ended = time.perf_counter()  # logging time does not count as training
        self._begin_step(trainer, pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Exclude the time of the validation from the training speed and from the data phase."""
        self._ended = None
        self._validated = True

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Log the validation, and start to time the next step."""
        evaluation = pl_module.evaluation
        metrics = {"val/loss": evaluation.loss, "val/bits_per_byte": evaluation.bits_per_byte}
        if self.train_loss is not None:
            metrics["val/gap"] = evaluation.loss - self.train_loss
        log(trainer, metrics)
        self._begin_step(trainer, pl_module)

    def _due(self, step: int, pl_module: GPTModule) -> bool:
        """Return whether a step is logged. The first step is logged so that a user soon sees that the run works."""
        is_validated = pl_module.settings.validation_due(step)  # always true for the last step
        return step == 1 or step % self.every_steps == 0 or is_validated

    def _begin_step(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        self._times = None
        if self._due(trainer.global_step + 1, pl_module):
            self._times = StepTimes(pl_module.device)

    def _start_interval(self) -> None:
        """Reset the sums over the steps since the last logged step. An applied step is a step that was not skipped."""
        self._losses: float | Tensor = 0.0  # sum of the losses of the applied steps
        self._steps: int | Tensor = 0  # number of applied steps
        self._clipped: int | Tensor = 0  # number of applied steps whose gradient was clipped
        self._seconds = 0.0  # seconds of training, without validations and logging
        self._tokens = 0  # number of tokens that were trained on during _seconds
        self._before: dict[str, list[Tensor]] = {}  # weights before a logged step's update, by kind

    def _mark(self, part: str) -> None:
        if self._times is not None:
            self._times.mark(part)

    def _count_step(self, pl_module: GPTModule) -> None:
        """Add the latest step to the sums, unless it was skipped.

        The sums stay on the device, because reading them in every step would make the host wait for a GPU.
        """
        applied = 1 - pl_module.not_finite  # 1.0 or 0.0
        limit = pl_module.settings.gradient_clip or math.inf
        # torch.where would copy a Python number to the GPU and wait for the copy, so pass a tensor.
        zero = torch.zeros_like(pl_module.step_loss)

        self._losses = self._losses + torch.where(applied > 0, pl_module.step_loss, zero)
        self._steps = self._steps + applied
        self._clipped = self._clipped + applied * (pl_module.grad_norm > limit)

    def _training_metrics(self, trainer: L.Trainer, pl_module: GPTModule) -> dict[str, float]:
        """Return loss, gradient norm, learning rates and progress, by tag. Store the loss as the latest point."""
        settings = pl_module.settings
        n_applied = int(self._steps)
        # If all steps since the last logged step were skipped, the curve shows the non-finite loss of the latest step.
        loss = self._losses / n_applied if n_applied else pl_module.step_loss
        self.train_loss = float(loss)

        metrics = {
            "train/loss": self.train_loss,
            "weights/grad_norm": pl_module.grad_norm.item(),
        }
        if settings.gradient_clip is not None and n_applied:
            metrics["weights/clipped"] = int(self._clipped) / n_applied
        for group in trainer.optimizers[0].param_groups:
            metrics[f"train/lr/{group['name']}"] = group["lr"]

        n_tokens = trainer.global_step * pl_module.tokens_per_step
        metrics["train/tokens"] = n_tokens
        metrics["train/passes"] = n_tokens / pl_module.store.n_tokens("train")
        return metrics

    def _weight_metrics(self, pl_module: GPTModule) -> dict[str, float]:
        """Return |weights| and |update of the latest step| / |weights| for each kind of layer."""
        weights = weights_by_kind(pl_module.model)
        updates = {}
        for kind, after in weights.items():
            pairs = zip(after, self._before[kind], strict=True)
            updates[kind] = [now - before for now, before in pairs]

        metrics = {}
        update_norms = norms(updates, pl_module.model)
        for kind, norm in norms(weights, pl_module.model).items():
            metrics[f"weights/norm/{kind}"] = norm
            metrics[f"weights/update_ratio/{kind}"] = update_norms[kind] / norm if norm else 0.0
        return metrics

    def _work_metrics(self, pl_module: GPTModule) -> dict[str, float]:
        """Return the speed since the last logged step, the times of the latest step, and the peak memory, if known."""
        metrics = {}
        if self._seconds:
            tokens_per_second = self._tokens / self._seconds
            metrics["work/tokens_per_second"] = tokens_per_second
            if self._peak is not None:
                metrics["work/mfu"] = tokens_per_second * self._flops_per_token / self._peak

        assert self._times is not None  # set for every step that is logged
        for part, milliseconds in self._times.milliseconds().items():
            metrics[f"work/ms/{part}"] = milliseconds

        memory = peak_memory(pl_module.device)
        if memory is not None:
            metrics["work/memory_gb"] = memory / 1e9
        return metrics
