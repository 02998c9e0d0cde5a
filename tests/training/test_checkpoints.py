"""The checkpoints of a run have the steps of their names, and enough data to sample from."""

import errno
import os
from functools import partial

import lightning as L
import pytest
import torch

import gptmini
from forked import in_processes
from gptmini.checkpoint.file import read_checkpoint, step_of
from gptmini.runs import RunStatus, read_status, write_status
from gptmini.runs.find import checkpoints_in
from gptmini.training.callbacks.checkpoints import AtomicCheckpointIO, RunCheckpoints, Stop
from training.test_strategies import trained


class StopAtTheEnd(L.Callback):
    """Requests a stop after the last step is done and saved."""

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.global_step == trainer.max_steps:
            raise Stop(0)


def test_best_last_and_previous_are_the_steps_they_name(train, tmp_path, checkpoints):
    trainer = train(callbacks=[checkpoints], max_steps=9, val_every_steps=5)
    folder = tmp_path / "checkpoints"
    steps = {path.stem: read_checkpoint(path)["global_step"] for path in folder.iterdir()}

    # In so short a run, the loss falls in every step.
    assert steps == {"best": 9, "last": 9, "previous": 8}
    assert checkpoints.best.loss == trainer.lightning_module.evaluation.loss


@pytest.mark.slow
@pytest.mark.parametrize("every_steps", [1, 3])
def test_a_stop_after_the_last_step_saves_no_step_twice(train, tmp_path, every_steps):
    with pytest.raises(Stop):
        train(
            callbacks=[RunCheckpoints(every_steps=every_steps), StopAtTheEnd()],
            max_steps=9,
            val_every_steps=3,
            folder=tmp_path,
        )
    files = (tmp_path / "checkpoints").iterdir()
    steps = {path.name: read_checkpoint(path)["global_step"] for path in files}
    assert steps == {"best.ckpt": 9, "last.ckpt": 9, "previous.ckpt": 9 - every_steps}


@pytest.mark.slow
def test_the_state_is_written_after_each_checkpoint_and_names_its_step(
    train, tmp_path, monkeypatch
):
    seen = []

    def write(folder, state):
        seen.append((state.step, max(map(step_of, checkpoints_in(folder)))))
        write_status(folder, state)

    monkeypatch.setattr("gptmini.training.callbacks.checkpoints.write_status", write)
    train(callbacks=[RunCheckpoints(every_steps=2)], max_steps=7, val_every_steps=3)
    # best.ckpt has steps 3, 6 and 7, the steps of the validations.
    assert seen == [(step, step) for step in (2, 3, 4, 6, 6, 7, 7)]
    assert read_status(tmp_path) == RunStatus(state="running", step=7)


def test_a_checkpoint_alone_is_the_model_and_its_tokenizer(train, tmp_path, checkpoints):
    trainer = train("modern", callbacks=[checkpoints])
    model, tokenizer = gptmini.load(tmp_path)
    tokens = torch.tensor([tokenizer.encode("lazy")])
    expected = trainer.lightning_module.model.eval()(tokens)
    assert torch.equal(model(tokens), expected)


def trained_on_a_full_disk(train, n_ranks, *, failing, **settings):
    """Train as one process of a run with a full disk at some steps; return the error that ends it, or None."""
    write = AtomicCheckpointIO.save_checkpoint

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        if checkpoint["global_step"] in failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, checkpoint, path)

    # This run has its own forked process.
    AtomicCheckpointIO.save_checkpoint = save_checkpoint
    try:
        trained(train, n_ranks, max_steps=6, **settings)
    except OSError as error:
        return error.strerror
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "failing", "told", "last"),
    [("ddp", {2, 4}, None, 6), ("fsdp2", {6}, "No space left on device", 4)],
    ids=["amid the run", "at the end"],
)
def test_every_rank_learns_of_a_save_that_fails(train, tmp_path, strategy, failing, told, last):
    options = {"failing": failing, "folder": tmp_path, "strategy": strategy}
    run = partial(trained_on_a_full_disk, train, 2, **options)
    assert in_processes(2, run, folder=tmp_path) == [told, told]
    assert read_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["global_step"] == last
