"""A tiny run of gptmini.training, without commands, Hydra or a large text."""

import pytest
import torch
import yaml

from gptmini.data import prepare
from gptmini.model import ModelSettings
from gptmini.optim import AdamWSettings, CosineSchedule, MuonSettings
from gptmini.system.files import CONFIGS
from gptmini.tokenizer import byte
from gptmini.training.assembling import assemble
from gptmini.training.settings import Component, RootSettings, Settings
from gptmini.training.trainer import build_trainer
from gptmini.training.trainer_settings import TrainerSettings
from sizes import TRAINED
from toys import Documents


class Sgd:
    """The settings of a custom optimizer, as described in docs/configuring.md."""

    @staticmethod
    def build(model):
        """All weights in one group."""
        group = {"params": list(model.parameters()), "name": "all", "peak_lr": 0.1}
        return torch.optim.SGD([group], lr=0.1, momentum=0.9)


OPTIMIZERS = {
    "sgd": Sgd,
    "adamw": AdamWSettings(lr=0.01, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1),
    # For tests that need little rounding error.
    "slow adamw": AdamWSettings(lr=0.002, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1),
    "muon": MuonSettings(
        lr=0.02,
        embedding_lr=0.03,
        unembedding_lr=0.01,
        scalar_lr=0.02,
        momentum=[0.85, 0.95],
        momentum_warmup_steps=7,
        ns_steps=4,
        weight_decay=0.1,
        cautious=True,
        betas=[0.8, 0.95],
        eps=1e-8,
    ),
}

SETTINGS = yaml.safe_load((CONFIGS / "trainer" / "default.yaml").read_text()) | {
    "max_steps": 6,
    "max_bad_steps": 3,
    "ema_steps": None,
    "global_batch_size": 8,
    "val_every_steps": 3,
    "val_tokens": None,
    "device": "cpu",
    "devices": 1,
    "num_nodes": 1,
    "precision": "fp32",
    "compile": False,
}
del SETTINGS["_target_"]

TEXT = "The quick brown fox jumps over the lazy dog. " * 20
HELD_OUT = "A lazy fox jumps. " * 9


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Prepared tokens of a small text."""
    store, _ = prepare(Documents([TEXT], [HELD_OUT]), byte, tmp_path_factory.mktemp("data"))
    return store


@pytest.fixture
def train(store, tmp_path):
    """Train a tiny model and return the trainer; keyword arguments change settings, model sizes or parts."""

    def run(
        kind="gpt2",
        *,
        tokens=store,
        optimizer="adamw",
        callbacks=(),
        loggers=(),
        dtype=torch.float32,
        dropout=0.0,
        seed=1,
        watch=None,
        folder=tmp_path,
        state=None,
        sizes=None,
        **settings,
    ):
        sizes = TRAINED[kind] | {"dropout": dropout} | (sizes or {})
        settings = Settings(
            root=RootSettings(seed=seed, data_dir="data", runs_dir="runs"),
            tokenizer=None,  # the text is prepared already
            corpus=Component("data", {}),
            trainer=TrainerSettings(**SETTINGS | settings),
            model=ModelSettings(**{key: sizes[key] for key in sizes if key != "vocab_size"}),
            optimizer=OPTIMIZERS[optimizer],
            schedule=CosineSchedule(warmup_steps=2, final_fraction=0.1),
        )

        module, data = assemble(settings, tokens, state, callbacks)
        module.to(dtype)
        trainer = build_trainer(module, folder, callbacks=callbacks, loggers=loggers, state=state)
        if watch is not None:
            watch(module)
        trainer.fit(module, data)
        return trainer

    return run
