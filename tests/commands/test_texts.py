"""A word without an equals sign is a text: gptmini train my.txt means data=text data.path=my.txt."""

import json

import pytest
import yaml

import gptmini
from gptmini.configuration.compose import compose
from gptmini.configuration.stored import resolve_configuration
from gptmini.configuration.texts import texts_as_overrides
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
    (["https://host/a=[1].txt?b=2,c=3#d"], "https://host/a=[1].txt?b=2,c=3#d"),
    (["my.txt", "hf://datasets/a/b.jsonl?c="], ["my.txt", "hf://datasets/a/b.jsonl?c="]),
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


@pytest.mark.parametrize("names", [["~x.txt"], ["${x}.txt"], ["~x.txt", "a[1]${x}.txt"]])
def test_a_text_may_have_any_name(folder, script, names):
    for letter, name in zip("ab", names, strict=False):
        (folder / name).write_text(letter * 100)
    script("prepare", *names, "tokenizer=char")
    (meta,) = (folder / "data").glob("*/meta.json")
    assert json.loads(meta.read_text())["tokenizer"]["characters"] == "ab"[: len(names)]


def test_many_texts_have_the_name_of_their_kind():
    words = [f"/a/folder/with/a/long/name/chapter-{i}.txt" for i in range(99)]
    plain, _ = resolve_configuration(
        compose("train", [f"data.path=[{','.join(words)}]", "data=text"])
    )
    assert plain["name"] == "text"


def test_the_text_at_an_address_names_the_run():
    words = ["https://host/my%20book.txt.gz?token=secret", "seed=2"]
    plain, _ = resolve_configuration(compose("train", texts_as_overrides(words)))
    assert plain["name"] == "my-book"


def test_python_takes_texts_too(script):
    run = gptmini.train("my.txt", "experiment=smoke", "callbacks=none", "logger=none")
    assert config_of(run.folder)["data"]["path"] == "my.txt"
