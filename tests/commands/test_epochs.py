"""Commands with epochs=: the number of steps, and what a resumed run may change."""

import pytest
import yaml

from run_folders import config_of, last, newest

# Of 8,000 bytes, the first 7,200 are trained on, and an end-of-text follows them. A step of experiment=smoke has four
# windows of 8 tokens. One pass takes 7,201 / 32 = 225.03 steps.
TEXT = "abcdefg\n" * 1000
SMOKE = ("abc.txt", "experiment=smoke", "callbacks.pictures=null")
LARGE = (*SMOKE, "trainer.global_batch_size=1800")  # 7,201 / (1800 * 8) = 0.5001


@pytest.fixture(autouse=True)
def text(script, tmp_path):
    """Write abc.txt into the working folder."""
    (tmp_path / "abc.txt").write_text(TEXT)


@pytest.mark.parametrize(
    ("epochs", "steps"), [("1", 226), ("2", 451), ("0.5", 113), ("0.001", 1), ("null", 4)]
)
def test_the_steps_of_epochs_replace_the_steps_of_an_experiment(script, epochs, steps):
    shown = yaml.safe_load(script("train", *SMOKE, f"epochs={epochs}", "--cfg", "job").out)
    assert (shown["trainer"]["max_steps"], shown["epochs"]) == (steps, None)


def test_a_pass_over_a_mixture_takes_the_tokens_of_all_its_sources(script, tmp_path):
    # The sources have 7,201 and 721 training tokens. 3 * 7,922 / 32 = 742.7 steps read 23,776 tokens, half of each.
    (tmp_path / "small.txt").write_text(TEXT[:800])
    sources = "data.sources={a: {path: abc.txt, weight: 1}, b: {path: small.txt, weight: 1}}"
    mixture = ("data=mixture", sources, *SMOKE[1:], "epochs=3", "--dry-run")
    out = script("train", *mixture).out
    assert "743 steps of 32 tokens" in out
    assert "a: 1 of 2 windows, 7,201 tokens, 1.65 passes" in out
    assert "b: 1 of 2 windows, 721 tokens, 16.49 passes" in out


def test_a_run_with_epochs_stores_its_steps_and_a_resumed_run_goes_on_with_more_steps(script):
    assert script("train", *LARGE, "epochs=3").code == 0
    assert config_of(newest())["trainer"]["max_steps"] == 2  # 1.5003, rounded up
    assert last(newest())["global_step"] == 2

    assert script("train", "resume=runs/latest", "trainer.max_steps=3").code == 0
    assert last(newest())["global_step"] == 3
    # Three steps are not three passes, so the configuration does not say epochs: 3.
    config = config_of(newest())
    assert (config["trainer"]["max_steps"], config["epochs"]) == (3, None)
    script("train", "resume=runs/latest", "epochs=4").assert_refused("epochs", "trainer.max_steps=")
