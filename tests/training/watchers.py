"""Callbacks and loggers that end a run, make its steps bad, or record it."""

import math
import signal

import lightning as L
from lightning.pytorch.loggers.logger import Logger


class Kill(BaseException):
    """Ends a run like SIGKILL: gptmini must not handle it."""


class KillAfter(L.Callback):
    """Ends the run after so many micro-steps of this process, possibly inside an optimizer step."""

    def __init__(self, micro_steps):
        self.left = micro_steps

    def on_train_batch_end(self, *hook):
        self.left -= 1
        if not self.left:
            raise Kill


class AskedToStop(L.Callback):
    """Requests a stop by SIGTERM in the step after so many steps."""

    def __init__(self, stopping, after):
        self.stopping = stopping
        self.after = after

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == self.after:
            self.stopping.signals.number = signal.SIGTERM


class Figures(L.Callback):
    """Stores loss and gradient norm of every step, and the loss of every validation, by step."""

    def __init__(self):
        self.losses = {}
        self.norms = {}
        self.validations = {}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.losses[trainer.global_step] = module.step_loss.item()
            self.norms[trainer.global_step] = module.grad_norm.item()

    def on_validation_end(self, trainer, module):
        step = trainer.global_step
        assert step not in self.validations, f"step {step} validated twice"
        self.validations[step] = module.evaluation.loss


class Seen(Logger):
    """Stores everything logged, by tag and step. A resumed run drops entries later than its checkpoint."""

    name = "seen"
    version = 0

    def __init__(self):
        super().__init__()
        self.points = {}

    def log_hyperparams(self, *arguments, **keywords):
        pass

    def log_metrics(self, metrics, step):
        for tag, value in metrics.items():
            assert (tag, step) not in self.points, f"{tag} logged twice at step {step}"
            self.points[tag, step] = value

    def resume(self, step):
        self.points = {key: value for key, value in self.points.items() if key[1] <= step}

    def values(self, tag):
        """All values of a tag, by step."""
        return {step: value for (name, step), value in self.points.items() if name == tag}

    def tags(self):
        return {tag for tag, _ in self.points}

    def same_every_time(self):
        """The reproducible entries of a run: everything except timings."""
        return {key: value for key, value in self.points.items() if not key[0].startswith("work/")}


class Poison(L.Callback):
    """Makes the loss or one gradient of some steps (counted from 0) non-finite, and stores the weights around them."""

    def __init__(self, steps, value=math.nan, kind="loss"):
        self.steps = steps
        self.value = value
        self.kind = kind
        self.around = {}

    def setup(self, trainer, module, stage):
        compute = module.compute_loss

        def poisoned(*inputs):
            loss = compute(*inputs)
            if self.kind == "loss" and trainer.global_step in self.steps:
                loss = loss * self.value
            return loss

        module.compute_loss = poisoned

    def on_after_backward(self, trainer, module):
        if self.kind == "gradient" and trainer.global_step in self.steps:
            next(module.model.parameters()).grad[0, 0] = self.value

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.around[trainer.global_step] = [p.detach().clone() for p in module.model.parameters()]


class Said(Seen):
    """Stores printed lines too."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def print_line(self, line):
        self.lines.append(line)
