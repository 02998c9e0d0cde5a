"""Every option of every group composes, and the experiments have the sizes that they are named after."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate

from gptmini.commands import configuration
from gptmini.commands.configuration import plain_tree
from gptmini.commands.jobs import compose_checked, composed
from gptmini.commands.plan import check_configuration
from gptmini.model import GPT
from gptmini.search import LauncherSettings, SearchSettings
from gptmini.user_error import UserError

CONFIGS = Path(__file__).parent.parent.parent / "configs"
OPTIONS = sorted(
    (group.name, option.stem)
    for group in CONFIGS.iterdir()
    if group.is_dir()
    for option in group.glob("*.yaml")
)


# What must be given with an option.
NEEDED = dict.fromkeys(("text", "tokens", "gpt2_124m", "modern_124m"), "data.path=my.txt")
NEEDED |= {"of_model": "tokenizer.path=runs/latest", "finetune": "init_from=null; data.path=my.txt"}
NEEDED |= {"hub": "data.dataset=folder", "mixture": "data.sources={a: {path: my.txt, weight: 1}}"}


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes(group, option):
    needed = NEEDED[option].split("; ") if option in NEEDED else []
    if group in ("sweep", "launcher"):
        tree = plain_tree(composed("sweep", [f"{group}={option}"]))
        tree["sweep"].pop("params")
        assert SearchSettings(**tree["sweep"]).seed == 1
        assert LauncherSettings(**tree["launcher"]).gpus == 1
        return

    roots = ["train", "prepare"] if group in ("data", "tokenizer") else ["train"]
    for root in roots:
        config = compose_checked(root, [f"{group}={option}", *needed])
        assert "_target_" in config.data


@pytest.mark.parametrize(
    # nanogpt is the number of parameters that nanoGPT prints of the model that it trains at these sizes.
    ("experiment", "vocab_size", "nanogpt"),
    [
        ("nanogpt_cpu", 65, 0.80e6),
        ("shakespeare_char_cpu", 65, 0.80e6),
        ("shakespeare_char", 65, 10.65e6),
        ("gpt2_124m", 50257, 124.44e6),
    ],
)
def test_experiments_have_nanogpts_sizes(experiment, vocab_size, nanogpt):
    config = compose_checked("train", [f"experiment={experiment}", "data.path=my.txt"])
    with torch.device("meta"):
        model = GPT(instantiate(config.model)(vocab_size=vocab_size))
    assert model.n_parameters == pytest.approx(nanogpt, rel=0.05)


def test_no_callbacks_means_none_in_every_experiment():
    for experiment in (option for group, option in OPTIONS if group == "experiment"):
        overrides = [f"experiment={experiment}", "callbacks=none", "data=text", "data.path=my.txt"]
        config = compose_checked("train", [*overrides, "init_from=null"])
        assert config.callbacks == {}


def test_settings_of_a_callback_that_is_left_out_are_refused_with_the_remedy(tmp_path):
    (tmp_path / "experiment").mkdir()
    mine = "# @package _global_\ncallbacks: {scalars: {every_steps: 5}}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(mine)

    overrides = ["experiment=mine", "callbacks=none"]
    with pytest.raises(UserError, match=r"callbacks\.scalars=null leaves it out too"):
        check_configuration(compose_checked("train", overrides, str(tmp_path)))
    config = compose_checked("train", [*overrides, "callbacks.scalars=null"], str(tmp_path))
    assert check_configuration(config).callbacks == {}


def test_a_key_that_a_clones_file_gains_is_known_at_once(tmp_path, monkeypatch):
    configs = tmp_path / "configs"
    shutil.copytree(CONFIGS, configs)
    monkeypatch.setattr(configuration, "CONFIGS", configs)
    with pytest.raises(UserError, match=r"has the key trainer\.more"):
        compose_checked("train", ["trainer.more=2"])

    with (configs / "trainer" / "default.yaml").open("a") as file:
        file.write("more: 1\n")
    assert compose_checked("train", ["trainer.more=2"]).trainer.more == 2


def test_a_tokenizer_that_learned_fewer_ids_than_asked_for_says_so(script, short):
    result = script("train", *short, "tokenizer=bpe", "tokenizer.vocab_size=4096")
    assert re.search(r"\nwarning  the tokenizer has \d+ ids, not the 4,096 of", "\n" + result.out)
