"""trainer.compile=auto on a pretended GPU: which runs are compiled, and that the measurement leaves no trace."""

from types import SimpleNamespace

import pytest
import torch

from gptmini.runs.resume import find_training_state
from gptmini.training.callbacks.checkpoints import RunCheckpoints
from gptmini.training.devices import compilation
from gptmini.training.devices.compilation import should_compile
from gptmini.training.trainer_settings import TrainerSettings
from training.runs import SETTINGS


@pytest.mark.parametrize(
    ("seconds_a_step", "n_steps", "max_time", "expected"),
    [
        (0.018, 700, None, False),  # the default run on an H200
        (1.0, 1200, None, True),  # modern_124m for twenty minutes
        # Compiling takes 20 s. 60 s of steps take 40 s with compilation.
        (0.5, 120, None, False),
        (0.5, 121, None, True),
        (0.5, 10_000, "1m", False),
        (0.5, 10_000, 61, True),
        (0.5, 121, "1h", True),
    ],
)
def test_a_run_is_compiled_if_its_steps_or_its_time_are_long(
    monkeypatch, seconds_a_step, n_steps, max_time, expected
):
    def measure_module(trial, seconds):
        return seconds_a_step, 5.0

    monkeypatch.setattr(compilation, "measure_module", measure_module)
    settings = TrainerSettings(**SETTINGS | {"max_time": max_time})
    is_compiled, reason = should_compile(SimpleNamespace(settings=settings), n_steps)
    assert is_compiled is expected
    assert "1 min 00 s" in reason


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("the memory is full"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("a bug"), None),
    ],
)
def test_a_step_that_only_fits_compiled_is_compiled(monkeypatch, error, expected):
    def measure_module(trial, seconds):
        raise error

    monkeypatch.setattr(compilation, "measure_module", measure_module)
    if expected is None:
        with pytest.raises(RuntimeError, match="a bug"):
            should_compile(None, 1000)
    else:
        assert should_compile(None, 1000)[0] is expected


def trained(train, folder, **options):
    """Train six steps with two micro-steps each, and return the trainer's weights and states."""
    torch.manual_seed(5)
    trainer = train(
        optimizer="muon",
        dropout=0.1,
        batch_size=4,
        callbacks=[RunCheckpoints(every_steps=4)],
        folder=folder,
        **options,
    )
    saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=False)
    return trainer, (saved["state_dict"], saved["optimizer_states"], torch.get_rng_state())


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_measurement_changes_no_bit_of_the_run(
    train, tmp_path, compiling_gpu, is_long, is_resumed
):
    measured = compiling_gpu(seconds_a_step=100.0 if is_long else 0.01)
    state = None
    if is_resumed:
        trained(train, tmp_path / "start", compile=False, max_steps=2)
        (tmp_path / "start" / "config.yaml").write_text("")
    results = []
    for compile in (False, "auto"):
        if is_resumed:
            state, _ = find_training_state(tmp_path / "start")
        trainer, result = trained(train, tmp_path / str(compile), compile=compile, state=state)
        results.append(result)
    assert measured == [2]
    module = trainer.lightning_module
    assert module.hardware.compile is module.settings.compile is is_long
    torch.testing.assert_close(*results, rtol=0, atol=0)
