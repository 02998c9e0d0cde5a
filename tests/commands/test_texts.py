"""A word without an equals sign is a text: gptmini train my.txt means data=text data.path=my.txt."""

import subprocess
import sys

import pytest
import yaml

import gptmini
from gptmini.configuration.texts import texts_as_overrides
from gptmini.user_error import UserError
from run_folders import config_of

# Words of a command line, and the value of data.path. Hydra's grammar gives commas and brackets a meaning.
WORDS = [
    (["my.txt"], "my.txt"),
    (["my.txt", "data=text"], "my.txt"),
    (["texts"], "texts"),
    (["-"], "-"),
    (["texts/*.txt"], "texts/*.txt"),
    (["my.txt", "seed=2", "texts"], ["my.txt", "texts"]),
    (["neu=x.txt"], "neu=x.txt"),
    (["a, b.txt", "neu=x.txt", "7"], ["a, b.txt", "neu=x.txt", "7"]),
    (["7"], "7"),
]


@pytest.fixture
def folder(script, tmp_path):
    """Return the working folder, with texts."""
    (tmp_path / "texts").mkdir()
    for name in ("texts/a.txt", "texts/b.txt", "neu=x.txt", "a, b.txt", "7", "null"):
        (tmp_path / name).write_text(f"The text {name}.\n" * 20)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("words", "path"), WORDS)
@pytest.mark.parametrize("command", ["train", "prepare"])
def test_the_texts_of_a_command_line_are_the_value_of_data_path(script, command, words, path):
    shown = yaml.safe_load(script(command, *words, "--cfg", "job").out)
    assert shown["data"]["_target_"] == "gptmini.data.TextCorpus"
    assert shown["data"]["path"] == path
    assert shown["seed"] == (2 if "seed=2" in words else 1)


@pytest.mark.usefixtures("folder")
def test_a_text_replaces_the_text_of_an_experiment(script):
    experiment = "experiment=shakespeare_char_cpu"
    shown = yaml.safe_load(script("train", "my.txt", experiment, "--cfg", "job").out)
    assert shown["data"]["path"] == "my.txt"
    assert shown["data"]["_target_"] == "gptmini.data.TextCorpus"
    assert shown["model"]["context_length"] == 64  # the experiment's value


def test_words_that_set_or_remove_keys_are_not_texts(folder):
    words = ["seed=2", "~callbacks.samples", "+callbacks.mine._target_=x.Y"]
    assert texts_as_overrides(words) == words
    (folder / "seed=2").touch()
    assert texts_as_overrides(words) == ["data=text", 'data.path="seed=2"', *words[1:]]


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000 + "a"])
def test_a_long_word_without_a_file_is_refused(name):
    with pytest.raises(UserError, match=r"^data.path must .* got 'a"):
        texts_as_overrides([name])


def test_python_takes_texts_too(script):
    run = gptmini.train("my.txt", "experiment=smoke", "callbacks=none", "logger=none")
    assert config_of(run.folder)["data"]["path"] == "my.txt"


@pytest.mark.slow
def test_each_trial_of_a_sweep_reads_the_text_of_stdin_for_its_own_number_of_epochs(tmp_path):
    pytest.importorskip("optuna")
    # The first 7,200 of 8,000 bytes are trained on, and an end-of-text follows them.
    # A step has 100 windows of 8 tokens: 7,201 / 800 = 9.001 and 2 * 7,201 / 800 = 18.0025.
    overrides = ("experiment=smoke", "trainer.global_batch_size=100", "epochs=1,2")
    command = [sys.executable, "-m", "gptmini", "sweep", "-", *overrides, "callbacks.pictures=null"]
    done = subprocess.run(
        command, input="abcdefg\n" * 1000, text=True, cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done
    steps = [
        config_of(tmp_path / "runs" / "sweep" / trial)["trainer"]["max_steps"] for trial in "01"
    ]
    assert steps == [10, 19]
