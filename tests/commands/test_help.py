"""--help shows what a command takes: groups with their options, and each key with its value and its meaning."""

import re
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from gptmini.commands.comments import comments_of
from gptmini.commands.jobs import compose_checked
from gptmini.commands.showing import show_help
from gptmini.model.config import NAMES
from gptmini.user_error import UserError

CONFIGS = Path(__file__).parent.parent.parent / "configs"
# Command lines that together choose most options of the groups.
CHOICES = [
    (),
    ("model=gpt2", "optimizer=adamw", "schedule=cosine", "data=shakespeare", "logger=mlflow"),
    ("model=modern", "tokenizer=byte", "schedule=linear", "data=text", "logger=wandb"),
    ("experiment=smoke", "logger=csv", "seed=7", "trainer.max_steps=9"),
]
# What the first experiment needs besides its name.
NEEDED = {"experiment": ["init_from=null", "data.path=my.txt"], "data": ["data.dataset=folder"]}


@pytest.fixture
def shown(capsys):
    """The help text for a command line."""

    def run(*overrides, command="train", config_dir=None):
        show_help(command, overrides, config_dir)
        return capsys.readouterr().out

    return run


def leaves(tree, prefix=""):
    """Dotted name and value of each value of a configuration that a user may change."""
    for name, value in tree.items():
        if name.endswith("_"):
            continue
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def shown_keys(text):
    """What the help text shows: for each key what is typed to give it its value, and its meaning."""
    keys = {}
    key = ""
    for line in text.partition("present values:\n")[2].splitlines():
        begun = re.match(r"  ([a-z]\w*(?:\.\w+)*)=(\S*) *(.*)", line)
        if begun:
            key = begun[1]
            keys[key] = (begun[2], begun[3])
        elif line.startswith(" " * 40):
            value, meaning = keys[key]
            keys[key] = (value, f"{meaning} {line.strip()}".strip())
    return keys


@pytest.mark.parametrize("choices", CHOICES)
def test_each_key_is_shown_as_it_is_typed_to_have_its_present_value(shown, script, choices):
    keys = shown_keys(shown(*choices))
    # Hydra composes what is shown here, and parses what would be typed.
    composed = yaml.safe_load(script("train", "--cfg", "job", *choices).out)
    expected = dict(leaves(composed))
    assert set(keys) == set(expected)

    parser = OverridesParser.create()
    for key, (typed, _) in keys.items():
        if "${" not in typed and typed != "???":
            assert parser.parse_override(f"{key}={typed}").value() == expected[key], key


@pytest.mark.parametrize("choices", CHOICES)
def test_each_key_is_explained_and_every_line_fits_100_columns(shown, choices):
    text = shown(*choices)
    assert [key for key, (_, meaning) in shown_keys(text).items() if len(meaning) < 10] == []
    assert max(len(line) for line in text.splitlines()) <= 100


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


@pytest.mark.parametrize("option", ["gpt2", "modern"])
@pytest.mark.parametrize("key", NAMES)
def test_the_meaning_of_an_alternative_lists_its_names(option, key):
    comment = comments_of(CONFIGS / "model" / f"{option}.yaml").of_keys[key]
    assert [name for name in NAMES[key] if name not in comment] == []


@pytest.mark.parametrize(("command", "n_groups"), [("train", 9), ("prepare", 3)])
def test_the_groups_and_options_that_a_command_takes_are_listed(shown, command, n_groups):
    text = shown(command=command)
    listed = text.partition("GROUP=NAME:\n")[2].partition("Change any value")[0]
    listed = re.sub(r",\n +", ", ", listed)  # a long list goes on in the next line
    lines = re.findall(r"^  (\w+) +(.+)$", listed, re.MULTILINE)
    assert len(lines) == n_groups

    for group, options in lines:
        assert sorted(path.stem for path in (CONFIGS / group).iterdir()) == options.split(", ")
        compose_checked(command, [f"{group}={options.partition(', ')[0]}", *NEEDED.get(group, [])])
    assert "--config-dir" in text
    assert "--cfg job" in text


def test_options_and_comments_of_ones_own_are_shown(shown, tmp_path):
    for group in ("model", "experiment"):
        (tmp_path / group).mkdir()
    (tmp_path / "model" / "wide.yaml").write_text(
        "# Mine, and wide.\ndefaults: [modern, _self_]\nd_model: 1536\n"
    )
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n# My recipe.\ndefaults:\n  - override /model: wide\n"
        "callbacks:\n  stop: # above\n    _target_: my.Stop\n    # How long\n    # to wait.\n"
        "    patience: 3\n    words: ['#', \"a # b\"] # which words\n"
    )
    text = shown("experiment=mine", config_dir=str(tmp_path))
    keys = shown_keys(text)

    assert "gpt2, modern, tiny, wide, xl\n" in text
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
    comments = comments_of(file)
    assert comments.of_file == "Of the file, in two lines."
    assert comments.of_keys == {
        "first": "one",
        "third": "of the block",
        "third.inner": "after the end",
        "third.last": "above",
        "next": "of the next",
    }


def test_help_of_a_mistake_names_the_mistake(shown):
    with pytest.raises(UserError, match=r"the nearest is trainer\.max_steps"):
        shown("trainer.max_step=3")


def test_help_shows_the_keys_of_a_new_run_alone(shown):
    with pytest.raises(UserError, match=r"--cfg job resume=runs/latest shows those of the run"):
        shown("resume=runs/latest")
