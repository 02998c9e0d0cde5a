"""--help prints the groups with their options, and the commented YAML of a group or of a key."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from gptmini.commands.help import _lines_of
from gptmini.configuration.compose import compose
from gptmini.configuration.keys import option_files
from gptmini.model import ModelSettings

CONFIGS = Path(__file__).parent.parent.parent / "configs"


@pytest.fixture
def shown(script):
    """Return a function that returns the help text for a command line."""

    def run(*arguments, command="train"):
        result = script(command, "--help", *arguments)
        assert result.code == 0, result.err
        return result.out

    return run


def explanation(file, key):
    """Return the comments on a key in a file, or on the block that contains the key."""
    lines = [line for name in (key, key.partition(".")[0]) for line in _lines_of([file], name)]
    return " ".join(line.partition("#")[2].strip() for line in lines)


@pytest.mark.parametrize(("command", "n_groups"), [("train", 9), ("prepare", 3), ("sweep", 1)])
def test_the_groups_and_options_that_a_command_takes_are_listed(shown, command, n_groups):
    text = shown(command=command)
    listed = text.partition("GROUP=NAME:\n")[2].partition("Change any value")[0]
    lines = re.findall(r"^  (\w+) +(.+)$", listed, re.MULTILINE)
    assert len(lines) == n_groups

    for group, options in lines:
        assert sorted(path.stem for path in (CONFIGS / group).iterdir()) == options.split(", ")
        compose(command, [f"{group}={options.partition(', ')[0]}"])


@pytest.mark.parametrize(("command", "n_keys"), [("train", 12), ("prepare", 4)])
def test_each_root_key_is_printed_with_its_comment(shown, command, n_keys):
    text = shown(command=command).partition("no group:\n\n")[2].partition("\n\n")[0]
    roots = yaml.safe_load(text)
    assert len(roots) == n_keys
    for key in roots:
        lines = [*_lines_of([CONFIGS / "train.yaml", CONFIGS / f"{command}.yaml"], key)]
        assert any("# " in line for line in lines), key
        assert set(lines) <= set(text.splitlines()), key


@pytest.mark.parametrize("group", ["experiment", "model", "data", "schedule"])
def test_a_group_is_printed_with_its_options_and_the_files_of_the_chosen_one(shown, group):
    text = shown(group)
    for file in (CONFIGS / group).iterdir():
        (first, *_) = [line for line in file.read_text().splitlines() if not line.startswith("# @")]
        assert f"{group}={file.stem} {first.removeprefix('# ')}" in re.sub(" +", " ", text)
    chosen = {"model": "qwen_tiny", "data": "pydoc", "schedule": "trapezoid"}.get(group)
    for file in option_files(group, chosen, None):
        assert file.read_text().strip() in text
    # A group whose option is chosen on the command line is printed, too.
    assert (CONFIGS / "schedule" / "cosine.yaml").read_text() in shown("schedule=cosine")


def test_a_key_is_printed_with_its_comment_from_each_file_of_its_option(shown):
    assert shown("trainer.max_steps") == (
        "# trainer=default\n"
        "max_steps: auto # total optimizer steps of the run; auto: 700, or fewer for a text of less than 200 KB\n"
    )
    text = shown("model.n_layers")
    assert re.findall(r"^# model=(\w+)$", text, re.MULTILINE) == ["gpt2", "llama_tiny", "qwen_tiny"]
    assert re.findall(r"^n_layers: (\d+)", text, re.MULTILINE) == ["12", "4", "2"]
    samples = yaml.safe_load(shown("callbacks.samples"))["samples"]
    assert (
        samples == yaml.safe_load((CONFIGS / "callbacks" / "default.yaml").read_text())["samples"]
    )


def test_a_key_of_other_options_is_printed_for_each_of_them(shown):
    text = shown("data.path")
    assert re.findall(r"^# data=(\w+)$", text, re.MULTILINE) == ["shakespeare", "text", "tokens"]
    assert (
        "path: ??? # required: file, folder, glob, address (https://host/book.txt), list of" in text
    )
    assert shown("data.path", "my.txt").startswith("# data=text\npath: ")


def test_a_word_that_is_a_file_and_a_key_means_the_key(shown, tmp_path):
    for name in ("seed", "model"):
        (tmp_path / name).write_text("a text")
    assert shown("seed").startswith("seed: 1 #")
    assert shown("model").startswith("model=gpt2 ")
    assert shown("my.txt").startswith("data=hub ")


def test_options_of_ones_own_are_printed(shown, tmp_path):
    wide = "# Mine, and wide.\ndefaults: [modern, _self_]\nd_model: 1536\n"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "wide.yaml").write_text(wide)
    own = ("--config-dir", str(tmp_path))
    assert "gpt2, llama, llama_tiny, modern, qwen_tiny, tiny, wide, xl\n" in shown(*own)
    text = shown("model=wide", *own)
    assert re.search("^model=wide +Mine, and wide.$", text, re.MULTILINE)
    assert wide in text


def test_the_lines_of_a_key_end_where_the_next_key_starts(tmp_path):
    file = tmp_path / "any.yaml"
    file.write_text(
        "# Of the file.\n\nfirst: '# no comment' # one\n# Two,\n# too.\nsecond: |\n  a # of the text\n"
        "third: # of the block\n  inner: [1, # amid\n    2] # after the end\n  # above\n  last: null\n"
    )
    assert [*_lines_of([file], "first")] == ["first: '# no comment' # one"]
    assert [*_lines_of([file], "second")] == ["# Two,", "# too.", "second: |", "  a # of the text"]
    assert [*_lines_of([file], "third.inner")] == ["inner: [1, # amid", "  2] # after the end"]
    assert [*_lines_of([file], "third.last")] == ["# above", "last: null"]
    assert len([*_lines_of([file], "third")]) == 5
    assert [*_lines_of([file], "third.absent")] == []


def test_each_key_has_a_comment():
    # Only checkpoints have the other field.
    keys = {field.name for field in fields(ModelSettings)} - {"full_context_length"}
    assert [key for key in keys if not explanation(CONFIGS / "model" / "gpt2.yaml", key)] == []
    for name in ("trainer/default", "tokenizer/bpe", "callbacks/default", "optimizer/muon"):
        file = CONFIGS / f"{name}.yaml"
        for key, value in yaml.safe_load(file.read_text()).items():
            inner = [f"{key}.{name}" for name in value] if isinstance(value, dict) else [key]
            for one in inner:
                assert one.endswith("_") or len(explanation(file, one)) >= 10, (name, one)


def test_the_first_line_of_each_option_is_a_whole_sentence():
    for file in CONFIGS.glob("*/*.yaml"):
        (first, *_) = [line for line in file.read_text().splitlines() if not line.startswith("# @")]
        assert re.fullmatch(r"# .+\.", first), file
