"""The checkpoints that a run leaves: of the steps that their names say, and enough to sample from."""

from functools import partial

import lightning as L
import pytest
import torch

import gptmini
from gptmini.checkpoint.file import read_checkpoint
from gptmini.training.checkpointing import RunCheckpoints, Stop


class StopAtTheEnd(L.Callback):
    """Asks the run to stop when its last step is done and saved."""

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.global_step == trainer.max_steps:
            raise Stop(0, "the test")


def test_best_last_and_previous_are_the_steps_they_name(train, tmp_path, checkpoints):
    trainer = train(callbacks=[checkpoints], max_steps=9, val_every_steps=5)
    folder = tmp_path / "checkpoints"
    steps = {path.stem: read_checkpoint(path)["global_step"] for path in folder.iterdir()}

    # The loss of so short a run falls throughout.
    assert steps == {"best": 9, "last": 9, "previous": 8}
    assert (folder / "best.ckpt").samefile(folder / "last.ckpt")
    assert checkpoints.best.loss == trainer.lightning_module.evaluation.loss


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


def test_a_checkpoint_alone_is_the_model_and_its_tokenizer(train, tmp_path, checkpoints):
    trainer = train("modern", callbacks=[checkpoints])
    model, tokenizer = gptmini.load(tmp_path)
    tokens = torch.tensor([tokenizer.encode("lazy")])
    expected = trainer.lightning_module.model.eval()(tokens)
    assert torch.equal(model(tokens), expected)


def test_compiled_checkpoint_has_the_same_keys(train, tmp_path, monkeypatch):
    # The names of the weights do not depend on the backend.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))

    def keys(compile):
        train(
            callbacks=[RunCheckpoints(every_steps=1)],
            compile=compile,
            max_steps=1,
            val_every_steps=1,
        )
        return list(read_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["state_dict"])

    assert keys(compile=True) == keys(compile=False)
