"""Paths and names may have any characters. Printed commands quote them for a shell."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from gptmini.configuration.compose import as_override, quote_for_hydra, quoted
from gptmini.system.untrusted import read_yaml

# Each has characters that Hydra's grammar lacks or interprets.
ODD = [
    *("jörg", "a b", "a (1)", "a,b", "a=b", "it's", 'say "x"', "#1", "[x]", "{x}", "a$b", "50%"),
    *("a\\b", "ö\\", 'ö\\"', "a&b;c!d`e^f<g>", "2024", "1e3", "true", "glob(x)", "str(1)x"),
    "日本\n語",
]
FOLDER = "jörg's (a,b) #1 [x] {y} $%=&"


def read_by_hydra(line):
    """The value of an override, read by Hydra's own parser."""
    return OverridesParser.create().parse_override(line).value()


# [x] is a list of paths unless it is quoted.
@pytest.mark.parametrize("text", [text for text in ODD if text != "[x]"])
def test_a_path_or_a_name_is_taken_as_it_is_typed(text):
    for key in ("data.path", "resume", "runs_dir", "data_dir", "name"):
        (line,) = quote_for_hydra([f"{key}={text}"])
        assert read_by_hydra(line) == text


@pytest.mark.parametrize("text", [*ODD, "", "null", "'a'", "a\\,b", "  a "])
def test_a_printed_override_is_read_as_the_text_that_it_is_printed_for(text):
    (line,) = quote_for_hydra([as_override("resume", text)])
    assert read_by_hydra(line) == text
    assert read_by_hydra(f"resume={quoted(text)}") == text


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("data.path=null", None),
        ("data.path='a b'", "a b"),
        ('data.path="jörg, x"', "jörg, x"),
        (r"data.path=a\,b", "a,b"),
        ("data.path=${data_dir}/x", "${data_dir}/x"),
        ("seed=2024", 2024),
        ("callbacks.samples.prompts=[a,'b (c)']", ["a", "b (c)"]),
    ],
)
def test_what_hydra_reads_as_one_value_keeps_the_meaning_that_hydra_gives_it(typed, value):
    assert quote_for_hydra([typed]) == [typed]
    assert read_by_hydra(typed) == value


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("data.path=a.txt,b.txt", ["a.txt", "b.txt"]),
        ("data.path='a,b.txt',c.txt", ["'a,b.txt'", "c.txt"]),
        ("name=choice(a,b)", ["a", "b"]),
    ],
)
def test_a_sweep_over_paths_stays_a_sweep(typed, values):
    (line,) = quote_for_hydra([typed], multirun=True)
    override = OverridesParser.create().parse_override(line)
    swept = [text.strip('"') for text in override.sweep_string_iterator()]
    assert swept == values
    # The command line of a job is parsed again, and has the same meaning.
    key = override.key_or_group
    for text in override.sweep_string_iterator():
        assert quote_for_hydra([f"{key}={text}"]) == [f"{key}={text}"]


def words_of(command):
    """The words into which bash splits a pasted command."""
    pasted = ["bash", "-c", f"printf '%s\\0' {command}"]
    result = subprocess.run(pasted, capture_output=True, text=True, check=True)
    return result.stdout.split("\0")[:-1]


def test_printed_commands_are_what_a_shell_runs(script, short, tmp_path, monkeypatch):
    here = tmp_path / FOLDER
    here.mkdir()
    text = here / "Bücher.txt"
    shutil.copy("my.txt", text)
    monkeypatch.chdir(here)

    def paste(command, *more):
        program, name, *arguments = words_of(command)
        assert program == "gptmini"
        result = script(name, *arguments, *more)
        assert result.code == 0, (command, result)
        return result.out

    typed = [*short, f"data.path={text}", "runs_dir=all runs's [ö]", "name=it's (1)"]
    stopped = script("train", *typed, "trainer.max_time=1e-3").out
    resume = re.search(r"^next     (.+)$", stopped, re.MULTILINE)[1]
    ended = paste(resume, "trainer.max_time=null")
    assert "done     3 steps" in ended

    commands = re.search(r"^next +(.+)\n +(.+)\n +(.+)$", ended, re.MULTILINE)
    assert paste(commands[1], "--max-new-tokens=2").startswith("Line")
    assert "bits per byte" in paste(commands[2])
    assert "report.html" in paste(commands[3])

    watch = re.search(r"watch it: (tensorboard .+)$", ended, re.MULTILINE)[1]
    program, flag, folder = words_of(watch)
    assert (program, flag) == ("tensorboard", "--logdir")
    assert len(list(Path(folder).glob("it's (1)/*/config.yaml"))) == 1


def test_a_tilde_is_the_home_folder_wherever_a_path_is_opened(script, monkeypatch, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "my.txt").rename(tmp_path / "home" / "my.txt")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    typed = ("data=text", "data.path=~/my.txt", "data_dir='~/data'", "runs_dir=~/runs")
    result = script("train", "experiment=smoke", *typed, "callbacks.pictures=null")
    assert result.code == 0, result.err
    assert len(list(tmp_path.glob("home/runs/smoke/*/config.yaml"))) == 1
    assert len(list(tmp_path.glob("home/data/*/meta.json"))) == 1
    assert script("sample", "~/runs/latest", "--max-new-tokens=2").code == 0
    assert script("train", "resume='~/runs/latest'", "trainer.max_steps=5").code == 0
    assert script("export", "~/runs/latest", "~/out").code == 0
    assert script("import", "~/out", "~/runs/imported").code == 0
    assert (tmp_path / "home" / "runs" / "imported").is_dir()
    assert not (tmp_path / "~").exists()


def test_a_run_with_names_that_are_not_utf8_goes_on_and_is_reported_and_exported(
    script, short, tmp_path
):
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / "my.txt").rename(tmp_path / f"{name}.txt")
    for arguments in (
        ("train", *short, f"data.path={name}.txt", f"folder={name}"),
        ("train", f"resume={name}", "trainer.max_steps=5"),
        ("report", name),
        ("export", name, f"out {name}"),
    ):
        result = script(*arguments)
        assert result.code == 0, (arguments, result.err)
    assert read_yaml(tmp_path / name / "config.yaml")["data"]["path"] == f"{name}.txt"
    assert "caf\\udce9" in (tmp_path / name / "report.html").read_text()


def test_a_list_of_files_is_a_list_and_a_space_may_end_a_name(script, prepared, tmp_path):
    for name in ("a.txt", "b.txt", "a "):
        (tmp_path / name).write_text("A text. " * 99)
    for path in ("[a.txt,b.txt]", "a "):
        assert script("prepare", *prepared, f"data.path={path}", "data.val_fraction=0.5").code == 0
