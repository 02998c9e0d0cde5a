"""The curves of a run: loss, gradients, weights and work, logged every few steps, and each validation."""

import math
import time

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from gptmini.checks import UserError, number, whole
from gptmini.hardware import peak_flops, peak_memory, wait_for
from gptmini.training.module import GPTModule
from gptmini.training.monitoring.logger import log
from gptmini.training.monitoring.measures import StepTimes, by_kind


class Scalars(L.Callback):
    """Logs loss, gradients, weights and work on the first, the last and every few steps, and each validation.

    Those steps alone are taken apart and timed; train/loss and weights/clipped are of all steps since the last point.
    """

    def __init__(self, every_steps: int, peak_tflops: float | None = None) -> None:
        """Log every so many optimizer steps; work/mfu is of peak_tflops, 10^12 operations a second, None: the maker's.

        UserError unless every_steps is a whole number above 0 and peak_tflops a number above 0 or None.
        """
        self.every_steps = whole("every_steps", every_steps)
        self.peak_tflops = number("peak_tflops", peak_tflops, above=0, null="the maker's")
        self.train_loss: float | None = None  # newest point of train/loss
        self._start_interval()
        self._ended: float | None = None  # when the last micro-step ended; None when something else came between
        self._times: StepTimes | None = None  # of the running step, if it will be logged
        self._validated = False  # since the last micro-step

    def state_dict(self) -> dict:
        """What a resumed run must remember, for its curves to go on as if nothing had happened; the first rank's."""
        return {
            "loss": float(self._losses),
            "steps": int(self._steps),
            "clipped": int(self._clipped),
            "train_loss": self.train_loss,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore state_dict(); UserError if it holds anything but numbers."""
        numbers = [state[name] for name in ("loss", "steps", "clipped", "train_loss")]
        self._losses, self._steps, self._clipped, self.train_loss = numbers
        if [type(number) for number in numbers] not in ([float, int, int, float], [float, int, int, type(None)]):
            raise UserError(f"a sum of losses, two counts and a loss must be numbers, got {state}")

    def on_train_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Look up what stays as it is, and begin the first step."""
        peak = 1e12 * self.peak_tflops if self.peak_tflops else peak_flops(pl_module.device, str(trainer.precision))
        self._flops_of_token, self._peak = pl_module.model.flops_per_token, peak and peak * trainer.world_size
        self._begin_step(trainer, pl_module)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: GPTModule, batch: tuple, batch_idx: int) -> None:
        """The batch is here; what came between is not charged to it."""
        self._mark("between" if self._validated else "data")
        self._validated = False

    def on_before_backward(self, trainer: L.Trainer, pl_module: GPTModule, loss: Tensor) -> None:
        """The loss is computed."""
        self._mark("forward")

    def on_after_backward(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """The gradients are."""
        self._mark("backward")

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: GPTModule, optimizer: Optimizer) -> None:
        """Keep the weights of a step that will be logged."""
        if self._times is not None:
            self._before = {kind: [w.clone() for w in weights] for kind, weights in by_kind(pl_module.model).items()}
            self._mark("this copy")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: GPTModule, outputs: object, batch: tuple, batch_idx: int
    ) -> None:
        """Count tokens and time of micro-steps that follow each other; log when the interval comes round."""
        self._mark("optimizer")
        step_done = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        validation_follows = step_done and pl_module.settings.validation_due(trainer.global_step)
        if self._times is not None or validation_follows or self._ended is None:
            wait_for(pl_module.device)  # an interval begins and ends when its work is done, not when it was asked for
        now = time.perf_counter()
        if self._ended is not None:
            self._seconds += now - self._ended
            self._tokens += batch[0].numel() * trainer.world_size
        self._ended = now
        if not step_done:
            return

        # Sums stay on the device until they are logged: a look at them would keep a GPU waiting in every step.
        applied = 1 - pl_module.not_finite
        limit = pl_module.settings.gradient_clip or math.inf
        nothing = torch.zeros_like(pl_module.step_loss)  # torch.where would copy a plain 0.0 to a GPU, and wait
        self._losses = self._losses + torch.where(applied > 0, pl_module.step_loss, nothing)
        self._steps = self._steps + applied
        self._clipped = self._clipped + applied * (pl_module.grad_norm > limit)
        if self._due(trainer.global_step, pl_module):
            log(trainer, self._metrics(trainer, pl_module))
            self._start_interval()
            self._ended = time.perf_counter()  # what logging took is not training
        self._begin_step(trainer, pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Keep validation out of the training speed."""
        self._ended, self._validated = None, True

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Log the validation."""
        now = pl_module.evaluation
        gap = {} if self.train_loss is None else {"val/gap": now.loss - self.train_loss}
        log(trainer, {"val/loss": now.loss, "val/bits_per_byte": now.bits_per_byte, **gap})
        self._begin_step(trainer, pl_module)

    def _due(self, step: int, pl_module: GPTModule) -> bool:
        return step in (1, pl_module.settings.max_steps) or step % self.every_steps == 0  # the first shows that it runs

    def _begin_step(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        self._times = StepTimes(pl_module.device) if self._due(trainer.global_step + 1, pl_module) else None

    def _start_interval(self) -> None:
        self._losses: float | Tensor = 0.0  # summed over the steps that were applied
        self._steps: int | Tensor = 0  # that were applied
        self._clipped: int | Tensor = 0  # of them
        self._seconds, self._tokens = 0.0, 0
        self._before: dict[str, list[Tensor]] = {}  # weights of the step to be logged, before its update

    def _mark(self, part: str) -> None:
        if self._times is not None:
            self._times.mark(part)

    def _metrics(self, trainer: L.Trainer, pl_module: GPTModule) -> dict[str, float]:
        """Every scalar of the newest step, by tag."""
        n_steps = int(self._steps)
        loss = self._losses / n_steps if n_steps else pl_module.step_loss  # or of a bad one
        self.train_loss = float(trainer.strategy.reduce(loss, reduce_op="mean"))
        step, settings, store = trainer.global_step, pl_module.settings, pl_module.store
        n_tokens = step * settings.global_batch_size * pl_module.model.config.context_length
        metrics = {"train/loss": self.train_loss, "weights/grad_norm": pl_module.grad_norm.item()}
        if settings.gradient_clip is not None and n_steps:
            metrics["weights/clipped"] = int(self._clipped) / n_steps
        metrics |= {f"train/lr/{group['name']}": group["lr"] for group in trainer.optimizers[0].param_groups}
        metrics |= {"train/tokens": n_tokens, "train/passes": n_tokens / store.n_tokens("train")}
        for kind, weights in by_kind(pl_module.model).items():
            size = metrics[f"weights/norm/{kind}"] = get_total_norm(weights).item()
            changes = [new - old for new, old in zip(weights, self._before[kind], strict=True)]
            change = get_total_norm(changes).item()
            metrics[f"weights/update_ratio/{kind}"] = change / size if size else 0.0
        if self._seconds:
            speed = metrics["work/tokens_per_second"] = self._tokens / self._seconds
            if self._peak:
                metrics["work/mfu"] = speed * self._flops_of_token / self._peak
        metrics |= {f"work/ms/{part}": spent for part, spent in self._times.milliseconds().items()}
        if (memory := peak_memory(pl_module.device)) is not None:
            metrics["work/memory_gb"] = memory / 1e9
        return metrics
