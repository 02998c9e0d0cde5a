"""The host waits for the GPU only when it must, and the largest batch is found in time. Run with pytest -m gpu."""

import time

import lightning as L
import pytest
import torch

from gptmini.system.hardware import choose_hardware
from gptmini.training.callbacks.bad_steps import BadSteps
from gptmini.training.callbacks.checkpoints import RunCheckpoints
from gptmini.training.callbacks.scalars import Scalars
from gptmini.training.devices.batch_size import choose_batch_size
from gptmini.training.stopping import Stopping
from gptmini.training.trainer_settings import TrainerSettings
from gpu.parts import OPTIMIZERS, model_of
from training.runs import SETTINGS

pytestmark = pytest.mark.gpu


class NoWaiting(L.Callback):
    """Makes torch raise if the host waits for the GPU between the start of step first and the end of step last."""

    def __init__(self, first, last):
        self.first = first
        self.last = last

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == self.first and batch_idx % trainer.accumulate_grad_batches == 0:
            self.set("error")

    def on_train_batch_end(self, trainer, module, *batch):
        # torch does not detect waiting for an event, so check that the newest step is still unread.
        if self.first < trainer.global_step <= self.last and torch.cuda.is_available():
            assert module.step_reports.latest.step == trainer.global_step - 1
        if trainer.global_step == self.last:
            self.set("default")

    def set(self, mode):
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.parametrize("compile", [False, True])
@OPTIMIZERS
def test_the_host_never_waits_in_steps_that_are_not_logged(run, optimizer, compile):
    callbacks = [
        NoWaiting(3, 8),
        Scalars(every_steps=10),
        BadSteps(3),
        Stopping(1000.0),
        RunCheckpoints(every_steps=50),
    ]
    options = {"precision": "bf16", "max_steps": 12, "val_every_steps": 12, "dropout": 0.1}
    try:
        run(optimizer=optimizer, compile=compile, callbacks=callbacks, **options)
    finally:
        NoWaiting(0, 0).set("default")


def test_the_largest_batch_that_fits_is_found_in_time_and_its_memory_given_back(device):
    model = model_of("modern", d_model=256, context_length=512)

    start = time.perf_counter()
    trainer = TrainerSettings(**SETTINGS | {"global_batch_size": 4096})
    size = choose_batch_size(model, trainer, choose_hardware(device, "bf16", False))

    assert time.perf_counter() - start < 20  # a run starts soon, whatever its sizes
    assert 4096 % size == 0
    if torch.cuda.is_available():
        assert torch.cuda.memory_reserved() < 2**28  # 256 MB, which libraries keep
    print(f"{size} of 4096 sequences at once")
