"""The host waits for the GPU only when it must, and the largest batch is found in time. Run with pytest -m gpu."""

import time
import warnings

import lightning as L
import pytest
import torch

from gptmini.generation import Decoder, Rules
from gptmini.hardware import choose_hardware
from gptmini.training.callbacks.checkpoints import RunCheckpoints
from gptmini.training.callbacks.scalars import Scalars
from gptmini.training.devices.batch_size import choose_batch_size
from gptmini.training.stopping import Stopping
from gptmini.training.trainer_settings import TrainerSettings
from gpu.parts import OPTIMIZERS, TRY_ON_CPU, model_of
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
def test_decoding_waits_for_the_gpu_once_a_token(device, compile):
    model = model_of("modern").to(device).eval()
    decoder = Decoder(model, batch_size=2, capacity=43, compile=compile)
    rules = Rules(temperature=0.8, top_k=50, top_p=0.9)
    decoder.add([1, 2, 3], rules, stream=0)
    decoder.add([4, 5], rules, stream=1)
    for _ in range(5):  # encode, compile, record
        decoder.draw()

    n_tokens = 8
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        NoWaiting(0, 0).set("warn")
        try:
            for _ in range(n_tokens):
                decoder.draw()
        finally:
            NoWaiting(0, 0).set("default")

    n_waits = sum("synchronizing CUDA operation" in str(warning.message) for warning in waits)
    print(f"{n_waits} waits for {n_tokens} tokens")
    assert n_waits == (0 if TRY_ON_CPU else n_tokens)


@pytest.mark.parametrize("compile", [False, True])
@OPTIMIZERS
def test_the_host_never_waits_in_steps_that_are_not_logged(run, optimizer, compile):
    callbacks = [
        NoWaiting(3, 8),
        Scalars(every_steps=10),
        Stopping(1000.0, 3),
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
