"""The kernels that take the most time of three training steps of experiment=modern_124m."""

from functools import partial

import lightning as L
import torch

from gptmini.training import GPTModule

from .fits import fit
from .setting import Setting

N_KERNELS = 10  # that the table shows
N_STEPS = 3  # that are profiled


class Profile(L.Callback):
    """Profiles a few steps, after compiling and warming up are over."""

    def __init__(self, first_step: int) -> None:
        """Profile N_STEPS steps once first_step steps are done."""
        self.first_step = first_step
        self.done = False
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.profile = torch.profiler.profile(activities=activities)

    def on_train_batch_start(
        self,
        trainer: L.Trainer,
        module: GPTModule,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Start the profiler with the first micro-step of the first step to profile."""
        is_new_step = batch_idx % trainer.accumulate_grad_batches == 0
        if is_new_step and trainer.global_step == self.first_step:
            self.profile.start()

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Stop the profiler after the last step to profile."""
        if trainer.global_step == self.first_step + N_STEPS and not self.done:
            self.done = True
            self.profile.stop()


def measure_kernels(setting: Setting) -> None:
    """Profile a fit of the modern preset, and add a row for each of the kernels that take the most time."""
    first_step = setting.scale.first_step
    profile = Profile(first_step)
    figures = setting.table.measure(
        "kernels",
        "profiled run",
        # Two more steps than are profiled, so that the end of the fit is not among them.
        partial(
            fit,
            setting,
            "modern",
            callbacks=[profile],
            steps=first_step + N_STEPS + 2,
        ),
        expected=setting.expected_seconds,
    )
    if figures is None:
        return

    spent = spent_by_kernel(profile.profile, setting.device)
    total = sum(time for time, _ in spent)
    for time, event in spent[:N_KERNELS]:
        setting.table.add(
            "kernels",
            event.key[:36],  # the width of the table's column
            "measured",
            share=time / total,
            calls=event.count,
        )


def spent_by_kernel(profile: torch.profiler.profile, device: str) -> list[tuple[float, object]]:
    """Return the microseconds of each kernel and the profiler's event of it, the slowest first."""
    spent = []
    for event in profile.key_averages():
        if device != "cuda":
            spent.append((event.self_cpu_time_total, event))
            continue

        # On a GPU the operations of the processor have the times of their kernels too, which would count twice.
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        if on_gpu and not event.is_user_annotation:
            spent.append((event.self_device_time_total, event))
    return sorted(spent, key=lambda pair: pair[0], reverse=True)
