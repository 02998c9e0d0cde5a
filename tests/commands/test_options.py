"""Every option of every group composes, and the experiments have the sizes that they are named after."""

import shutil
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate

from gptmini.checks import UserError
from gptmini.commands import configuration
from gptmini.commands.launching import compose_checked
from gptmini.model import GPT

CONFIGS = Path(__file__).parent.parent.parent / "configs"
OPTIONS = sorted(
    (group.name, option.stem)
    for group in CONFIGS.iterdir()
    if group.is_dir()
    for option in group.glob("*.yaml")
)


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes(group, option):
    needed = ["data.path=my.txt"] if option == "text" or option.endswith("_124m") else []
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


def test_a_key_that_a_clones_file_gains_is_known_at_once(tmp_path, monkeypatch):
    configs = tmp_path / "configs"
    shutil.copytree(CONFIGS, configs)
    monkeypatch.setattr(configuration, "CONFIGS", configs)
    with pytest.raises(UserError, match=r"has the key trainer\.more"):
        compose_checked("train", ["trainer.more=2"])

    with (configs / "trainer" / "default.yaml").open("a") as file:
        file.write("more: 1\n")
    assert compose_checked("train", ["trainer.more=2"]).trainer.more == 2
