"""A step with a non-finite loss or gradient changes only the counts, and too many in a row end the run."""

import itertools
import math

import lightning as L
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gptmini.data.prepared.order import window_starts
from gptmini.runs.resume import find_training_state
from gptmini.training.callbacks.bad_steps import BadSteps
from gptmini.training.callbacks.checkpoints import RunCheckpoints, Stop
from gptmini.training.callbacks.scalars import Scalars
from gptmini.training.stopping import Stopping
from training.watchers import AskedToStop, Poison, Said


@pytest.fixture(params=["at once", "a step late"])
def late(request, monkeypatch):
    """Read a step at once, as on a CPU, or after the next step is queued, as on a GPU."""
    is_late = request.param == "a step late"
    monkeypatch.setattr("gptmini.training.step_reports.LATE_FROM", ("cpu",) if is_late else ())
    return is_late


@pytest.mark.parametrize(
    ("optimizer", "kind", "value", "clip"),
    [
        ("adamw", "loss", math.nan, 1.0),
        ("adamw", "gradient", math.inf, None),
        ("muon", "loss", math.inf, None),
        ("muon", "gradient", math.nan, 1.0),
    ],
)
def test_a_bad_step_is_not_applied_but_counted_logged_and_named_with_its_batch(
    train, store, late, optimizer, kind, value, clip
):
    poison = Poison({2, 4}, value, kind)
    said = Said()
    trainer = train(
        max_steps=5,
        optimizer=optimizer,
        callbacks=[poison, Scalars(every_steps=1), BadSteps(3)],
        loggers=[said],
        gradient_clip=clip,
    )

    # Only good steps change the weights.
    weights = [*poison.around.values(), list(trainer.lightning_module.model.parameters())]
    for step, (before, after) in enumerate(itertools.pairwise(weights)):
        assert all(map(torch.equal, before, after)) == (step in poison.steps)

    # Bad steps, the last step included, are counted. Non-finite values are logged unchanged.
    assert said.values("train/bad_steps") == {3: 1, 5: 2}
    shown = "train/loss" if kind == "loss" else "weights/grad_norm"
    assert not math.isfinite(said.points[shown, 3])

    # The line of the third step names the starts of its windows.
    n_tokens = store.n_tokens("train")
    starts = window_starts(range(16, 24), n_tokens=n_tokens, context_length=5, seed=1)
    assert ", ".join(map(str, starts)) in said.lines[0]
    assert said.lines[0].startswith("step 3 skipped: loss ")
    assert all(p.isfinite().all() for p in trainer.lightning_module.model.parameters())


def test_too_many_in_a_row_end_the_run_with_the_last_good_checkpoint(train, tmp_path, late):
    (tmp_path / "config.yaml").write_text("")
    callbacks = [Poison({1, 4, 5, 6}), BadSteps(3), RunCheckpoints(every_steps=2)]
    wanted = "3 steps in a row had a non-finite loss or gradient .*step 7"
    with pytest.raises(ValueError, match=wanted):
        train(max_steps=9, callbacks=callbacks, val_every_steps=9)

    state, _ = find_training_state(tmp_path)
    assert state.step == 4  # steps 5 and 6 were bad
    assert (state.bad_steps, state.bad_steps_in_a_row) == (1, 0)


@pytest.mark.slow
def test_bad_steps_survive_a_resume(train, tmp_path, late):
    train(max_steps=4, callbacks=[Poison({1, 3}), RunCheckpoints(every_steps=4)])
    state, _ = find_training_state(tmp_path)
    trainer = train(
        max_steps=6, callbacks=[Poison({4}), RunCheckpoints(every_steps=9)], state=state
    )

    assert trainer.lightning_module.step_reports.bad_steps == 3
    assert trainer.lightning_module.step_reports.bad_steps_in_a_row == 0


def test_a_stop_tells_the_bad_step_before_it_and_counts_it(train, tmp_path, late):
    said = Said()
    stopping = Stopping(None)
    callbacks = [
        Poison({3}),
        AskedToStop(stopping, 3),
        BadSteps(3),
        stopping,
        RunCheckpoints(every_steps=9),
    ]
    with pytest.raises(Stop):
        train(max_steps=9, callbacks=callbacks, loggers=[said])
    assert said.lines[0].startswith("step 4 skipped")

    (tmp_path / "config.yaml").write_text("")
    state, _ = find_training_state(tmp_path)
    assert (state.step, state.bad_steps, state.bad_steps_in_a_row) == (4, 1, 1)


class Reads(TorchDispatchMode):
    """Counts reads of numbers from tensors, which make the host wait for a GPU."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.steps.append(self.trainer.global_step)
        return function(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_no_step_that_is_not_logged_is_read_by_the_host(train, optimizer, monkeypatch):
    monkeypatch.setattr("gptmini.training.step_reports.LATE_FROM", ("cpu",))
    reads = Reads()

    class Watch(L.Callback):
        def on_train_start(self, trainer, module):
            reads.trainer = trainer

    with reads:
        train(
            max_steps=9,
            optimizer=optimizer,
            callbacks=[
                Watch(),
                Scalars(every_steps=5),
                BadSteps(3),
                Stopping(None),
                RunCheckpoints(every_steps=50),
            ],
            val_every_steps=9,
            global_batch_size=16,
        )

    # Step 0 is the start, steps 1 and 5 are logged, and step 9 is the end.
    assert {step for step in reads.steps if 1 < step < 9} == {5}
