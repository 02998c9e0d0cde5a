"""The checkpoints that a run leaves: of the steps that their names say, and enough to sample from."""

from functools import partial

import torch

import gptmini
from gptmini.model.checkpoint import read_checkpoint
from gptmini.training.checkpointing import RunCheckpoints


def test_best_last_and_previous_are_the_steps_they_name(train, tmp_path, checkpoints):
    trainer = train(callbacks=[checkpoints], max_steps=9, val_every_steps=5)
    folder = tmp_path / "checkpoints"
    steps = {path.stem: read_checkpoint(path)["global_step"] for path in folder.iterdir()}

    # The loss of so short a run falls throughout.
    assert steps == {"best": 9, "last": 9, "previous": 8}
    assert (folder / "best.ckpt").samefile(folder / "last.ckpt")
    assert checkpoints.best.loss == trainer.lightning_module.evaluation.loss


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
        train(callbacks=[RunCheckpoints(1)], compile=compile, max_steps=1, val_every_steps=1)
        return list(read_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["state_dict"])

    assert keys(compile=True) == keys(compile=False)
