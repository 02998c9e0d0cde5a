"""--help prints the groups with their options, and each key with its value and its meaning."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from gptmini.configuration.comments import comments_of
from gptmini.configuration.compose import compose
from gptmini.configuration.keys import option_files
from gptmini.model import ModelSettings

CONFIGS = Path(__file__).parent.parent.parent / "configs"
# Together these command lines choose most options of the groups.
CHOICES = [
    (),
    ("model=gpt2", "optimizer=adamw", "schedule=cosine", "data=shakespeare", "logger=mlflow"),
    ("model=modern", "tokenizer=byte", "schedule=linear", "data=text", "logger=wandb"),
    ("experiment=smoke", "logger=csv", "seed=7", "trainer.max_steps=9"),
]


@pytest.fixture
def shown(script):
    """Return a function that returns the help text for a command line."""

    def run(*arguments, command="train"):
        result = script(command, "--help", *arguments)
        assert result.code == 0, result.err
        return result.out

    return run


def leaves(tree, prefix=""):
    """Yield the dotted name and the value of each key that a user may change."""
    for name, value in tree.items():
        if name.endswith("_"):
            continue
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def shown_keys(text):
    """Return the value and the meaning of each key in the help text."""
    keys = {}
    key = ""
    for line in text.partition("Current values:\n")[2].splitlines():
        begun = re.match(r"  ([a-z]\w*(?:\.\w+)*)=(\S*) *(.*)", line)
        if begun:
            key = begun[1]
            keys[key] = (begun[2], begun[3])
        elif line.startswith(" " * 40):
            value, meaning = keys[key]
            keys[key] = (value, f"{meaning} {line.strip()}".strip())
    return keys


@pytest.mark.parametrize("choices", CHOICES)
def test_each_key_is_explained_and_shown_as_it_is_typed_to_have_its_present_value(shown, choices):
    text = shown(*choices)
    assert max(len(line) for line in text.splitlines()) <= 100

    keys = shown_keys(text)
    # Hydra composes the expected values, and parses the printed overrides.
    expected = dict(leaves(OmegaConf.to_container(compose("train", choices)[0])))
    assert set(keys) == set(expected)

    parser = OverridesParser.create()
    for key, (typed, meaning) in keys.items():
        assert len(meaning) >= 10, key
        if "${" not in typed and typed != "???":
            assert parser.parse_override(f"{key}={typed}").value() == expected[key], key


@pytest.mark.parametrize("file", ["trainer/default", "tokenizer/bpe", "callbacks/default"])
def test_a_key_is_explained_by_the_comment_in_its_file(shown, file):
    group = file.partition("/")[0]
    keys = shown_keys(shown())
    lines = (CONFIGS / f"{file}.yaml").read_text().splitlines()
    found = 0
    for line in lines:
        beside = re.match(r"\s*([a-z]\w*): \S.*? # (.+)", line)
        if beside:
            named = [key for key in keys if key.startswith(group) and key.endswith(f".{beside[1]}")]
            assert beside[2] in [keys[key][1] for key in named], line
            found += 1
    assert found == sum(" # " in line and "_partial_" not in line for line in lines)


def test_the_meaning_stays_where_an_experiment_changes_the_value(shown):
    before = shown_keys(shown())
    after = shown_keys(shown("experiment=smoke"))
    assert after["trainer.max_steps"] == ("4", before["trainer.max_steps"][1])
    assert after["model.smear"][1] == before["model.smear"][1]


def test_the_meaning_of_an_alternative_lists_its_names():
    comments = comments_of(CONFIGS / "model" / "gpt2.yaml")[1]  # every other model extends it
    for key, hint in get_type_hints(ModelSettings).items():
        if get_origin(hint) is Literal:
            assert [name for name in get_args(hint) if name not in comments[key]] == [], key


def test_each_key_of_each_model_is_explained_and_no_explanation_is_repeated():
    # Only checkpoints have the other field.
    keys = {field.name for field in fields(ModelSettings)} - {"full_context_length"}
    of_gpt2 = comments_of(CONFIGS / "model" / "gpt2.yaml")[1]
    for file in (CONFIGS / "model").glob("*.yaml"):
        explained = set()
        for begun_from in option_files("model", file.stem, None):
            explained |= comments_of(begun_from)[1].keys()
        assert explained >= keys, file
        if file.stem != "gpt2":
            assert comments_of(file)[1].items() & of_gpt2.items() == set(), file


@pytest.mark.parametrize(("command", "n_groups"), [("train", 9), ("prepare", 3)])
def test_the_groups_and_options_that_a_command_takes_are_listed(shown, command, n_groups):
    text = shown(command=command)
    listed = text.partition("GROUP=NAME:\n")[2].partition("Change any value")[0]
    listed = re.sub(r",\n +", ", ", listed)  # a long list continues on the next line
    lines = re.findall(r"^  (\w+) +(.+)$", listed, re.MULTILINE)
    assert len(lines) == n_groups

    for group, options in lines:
        assert sorted(path.stem for path in (CONFIGS / group).iterdir()) == options.split(", ")
        compose(command, [f"{group}={options.partition(', ')[0]}"])
    assert "--config-dir" in text
    assert "--cfg job" in text


def test_options_and_comments_of_ones_own_are_shown(shown, tmp_path):
    files = {
        "model/wide.yaml": "# Mine, and wide.\ndefaults: [modern, _self_]\nd_model: 1536\n",
        "callbacks/careful.yaml": (
            "defaults: [default, _self_]\nstop: # above\n  _target_: my.Stop\n  # How long\n"
            "  # to wait.\n  patience: 3\n  words: ['#', \"a # b\"] # which words\n"
        ),
        "experiment/mine.yaml": (
            "# @package _global_\n# My recipe.\ndefaults:\n  - override /model: wide\n"
            "  - override /callbacks: careful\n"
        ),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    text = shown("experiment=mine", "--config-dir", str(tmp_path))
    keys = shown_keys(text)

    assert "gpt2, llama, llama_tiny, modern, qwen_tiny, tiny, wide, xl\n" in text
    assert "\nmodel=wide: Mine, and wide.\n" in text
    assert "\nexperiment=mine: My recipe.\n" in text
    assert keys["model.d_model"] == ("1536", "width of the residual stream")
    assert keys["callbacks.stop.patience"] == ("3", "How long to wait.")
    assert "which words" in text


def test_comments_are_told_from_values_that_hold_their_sign(tmp_path):
    file = tmp_path / "any.yaml"
    file.write_text(
        "# Of the file,\n# in two lines.\nfirst: '# no comment' # one\n"
        "second: a#b\n\n# Lost, because a line is empty below.\n\n"
        "third: # of the block\n  inner: [1, # amid\n    2] # after the end\n"
        "  # above\n  last: null\nempty:\n"
        "text: |\n  a # of the text\n# of the next\nnext: >-\n  b\n"
    )
    of_file, of_keys = comments_of(file)
    assert of_file == "Of the file, in two lines."
    assert of_keys == {
        "first": "one",
        "third": "of the block",
        "third.inner": "after the end",
        "third.last": "above",
        "next": "of the next",
    }


def test_one_key_or_those_of_a_group_are_shown_alone(shown):
    whole = shown_keys(shown())
    value, meaning = whole["trainer.max_steps"]
    assert shown("trainer.max_steps").split() == f"trainer.max_steps={value} {meaning}".split()

    alone = shown_keys(f"Current values:\n{shown('callbacks.samples', 'seed')}")
    expected = {key for key in whole if key.startswith("callbacks.samples.")} | {"seed"}
    assert set(alone) == expected
    assert all(alone[key] == whole[key] for key in alone)


@pytest.mark.parametrize("group", ["experiment", "model", "data"])
def test_a_group_is_shown_with_each_option_and_the_first_line_of_its_file(shown, group):
    text = " ".join(shown(group).split())
    for file in (CONFIGS / group).iterdir():
        (first, *_) = [line for line in file.read_text().splitlines() if not line.startswith("# @")]
        assert f"{group}={file.stem} {first.removeprefix('# ')}" in text
    keys = shown_keys(f"Current values:\n{shown(group)}")
    assert {key for key in keys if "." in key} == {
        key for key in shown_keys(shown()) if key.startswith(f"{group}.")
    }


def test_the_first_line_of_each_option_is_a_whole_sentence():
    for file in CONFIGS.glob("*/*.yaml"):
        (first, *_) = [line for line in file.read_text().splitlines() if not line.startswith("# @")]
        assert re.fullmatch(r"# .+\.", first), file


def test_a_key_of_other_options_is_shown_for_each_of_them(shown):
    text = shown("data.path")
    assert re.findall(r"^(data=\w+):", text, re.MULTILINE) == [
        "data=shakespeare",
        "data=text",
        "data=tokens",
    ]
    assert "  data.path=???  " in text
    assert "- for stdin" in " ".join(text.split())
    assert "data.path=my.txt" in shown("data.path", "my.txt")


def test_a_word_that_is_a_file_and_a_key_means_the_key(shown, tmp_path):
    for name in ("seed", "model"):
        (tmp_path / name).write_text("a text")
    assert "  seed=1  " in shown("seed")
    assert "  model=tiny  " in shown("model")
    assert "  data.path=my.txt  " in shown("my.txt")
