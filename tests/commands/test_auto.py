"""Commands with auto: what a run and a preparation choose, print and store."""

import re
from pathlib import Path

import pytest
import yaml

from gptmini.data import TokenStore
from gptmini.job import budget
from run_folders import config_of, last, newest

TEXT = ("data=text", "data.path=my.txt")
QUIET = ("callbacks.samples=null", "callbacks.pictures=null", "logger=none")
TINY = (
    "model.context_length=16",
    "model.d_model=16",
    "model.n_layers=1",
    "trainer.global_batch_size=4",
    "trainer.val_every_steps=1000",
)


@pytest.fixture
def often(script):
    """A run that reads its text many times."""
    result = script("train", *TEXT, *QUIET, *TINY, "trainer.max_steps=200")
    assert result.code == 0, result
    return result


def test_a_run_prints_and_stores_plain_numbers(often, script):
    config = config_of(newest())
    shown = often.out.splitlines()
    number = next(i for i, line in enumerate(shown) if line.startswith("auto "))
    assert " passes over 7.3 kB" in shown[number]
    for group, name in (("tokenizer", "vocab_size"), ("model", "dropout")):
        assert f"{name} {config[group][name]}" in shown[number + 1]
    assert config["model"]["dropout"] > 0
    assert config["optimizer"]["weight_decay"] > 0
    assert config["trainer"]["ema_steps"] == 20
    assert config["schedule"]["final_fraction"] == 0.3
    assert "max_steps" not in shown[number + 1]  # the number of steps was typed

    prepared = script("prepare", *TEXT, *TINY, "trainer.max_steps=200")
    assert "prepared before" in prepared.out
    assert f"vocab {config['tokenizer']['vocab_size']} tokens" in prepared.out
    resumed = script("train", "resume=runs/latest", "trainer.max_steps=201")
    assert resumed.code == 0, resumed
    again = config_of(newest())
    for group in ("model", "optimizer", "schedule", "tokenizer"):
        assert again[group] == config[group]
    assert again["trainer"] == config["trainer"] | {"max_steps": 201}


def test_a_run_that_was_stored_without_the_newer_keys_goes_on_without_them(script, trained):
    path = trained / "config.yaml"
    config = yaml.safe_load(path.read_text())
    del config["trainer"]["ema_steps"]
    path.write_text(yaml.safe_dump(config))
    assert script("train", f"resume={trained}", "trainer.max_steps=6").code == 0
    states = last(trained)["optimizer_states"][0]["state"].values()
    assert all("other_weights" not in state for state in states)


@pytest.mark.parametrize("key", ["tokenizer.vocab_size", "trainer.max_steps"])
def test_budget_chooses_what_is_typed_as_auto(script, key, monkeypatch):
    monkeypatch.setattr(budget, "CHOSEN_SECONDS", 0.2)
    typed = ("callbacks=none", "budget=20s", "--cfg", "job")
    chosen = yaml.safe_load(script("train", *TEXT, *typed, f"{key}=auto").out)
    assert chosen["tokenizer"]["vocab_size"] == 512
    # 40 passes are fewer than 100 steps. A slow machine does not reach 100 steps. The value for one pass is 700.
    assert chosen["trainer"]["max_steps"] <= 100


def test_the_texts_of_a_mixture_get_a_vocabulary_for_their_size(script):
    sources = "data.sources={a: {path: my.txt, weight: 1}}"
    shown = script("prepare", "data=mixture", sources, *TINY, "trainer.max_steps=300")
    assert shown.code == 0
    (meta,) = Path("data").glob("mixture-*/meta.json")
    assert TokenStore(meta.parent).tokenizer.n_vocab <= 512


def test_numbers_win(script):
    values = ("model.dropout=0.03", "optimizer.weight_decay=0.5", "tokenizer.vocab_size=300")
    assert script("train", *TEXT, *QUIET, *TINY, *values, "epochs=3").code == 0
    config = config_of(newest())
    assert config["model"]["dropout"] == 0.03
    assert config["optimizer"]["weight_decay"] == 0.5
    assert config["tokenizer"]["vocab_size"] == 300
    assert config["schedule"]["final_fraction"] == 0.15  # 0.05 for each pass


@pytest.mark.parametrize("words", [("trainer.max_steps=2",), ("init_from=RUN", "epochs=5")])
def test_one_pass_and_trained_weights_get_neither_dropout_nor_decay(script, trained, words):
    words = [word.replace("RUN", str(trained)) for word in words]
    muon = () if "epochs" not in str(words) else ("optimizer=muon",)
    assert script("train", *TEXT, *QUIET, *TINY[3:], *words, *muon).code == 0
    config = config_of(newest())
    assert config["model"]["dropout"] == config["optimizer"]["weight_decay"] == 0.0
    assert config["trainer"]["ema_steps"] is None
    assert config["schedule"]["final_fraction"] == 0.0


def test_a_run_of_its_own_length_names_a_longer_one_unless_it_read_the_text_often(script, often):
    enough = script("train", *TEXT, *QUIET, *TINY)  # 15 passes
    assert "better " not in enough.out
    assert "better " not in often.out  # its number of steps was typed

    few_passes = script("train", *TEXT, *QUIET, *TINY, "trainer.global_batch_size=1")
    line = next(line for line in few_passes.out.splitlines() if line.startswith("better "))
    n_tokens = int(re.search(r"([\d,]+) training tokens", few_passes.out)[1].replace(",", ""))
    n_steps = round(15 * n_tokens / 16)  # 15 passes in steps of 16 tokens
    assert line.endswith(f"trainer.max_steps={n_steps}")
    assert re.search(rf"\d+ % fewer bits per byte, in {n_steps / 700:.1f} times", few_passes.out)


def test_other_optimizers_have_no_auto(script):
    result = script("train", *TEXT, "optimizer=adamw", "optimizer.weight_decay=auto")
    result.assert_refused("optimizer.weight_decay", "auto")


def test_the_configuration_says_auto(script):
    shown = yaml.safe_load(script("train", *TEXT, "--cfg", "job").out)
    assert shown["trainer"]["max_steps"] == shown["tokenizer"]["vocab_size"] == "auto"
