"""Paths and names of any characters work wherever one is typed, and the printed commands name them for a shell."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from gptmini.commands import announcements
from gptmini.commands.configuration import quoted
from gptmini.commands.jobs import compose_checked
from gptmini.commands.quoting import in_hydras_grammar, override_of
from run_folders import config_of, newest

# Each holds characters that Hydra's grammar lacks, or that mean something else to it.
ODD = [
    "jörg",
    "a b",
    "a (1)",
    "a,b",
    "a=b",
    "it's",
    'say "x"',
    "#1",
    "[x]",
    "{x}",
    "a$b",
    "50%",
    "a\\b",
    "ö\\",
    'ö\\"',
    "a&b;c!d`e^f<g>",
    "2024",
    "1e3",
    "true",
    "glob(x)",
    "str(1)x",
    "日本\n語",
]
FOLDER = "jörg's (a,b) #1 [x] {y} $%=&"


def read_by_hydra(line):
    """The value of an override as Hydra's own parser reads it."""
    return OverridesParser.create().parse_override(line).value()


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("key", ["data.path", "resume", "runs_dir", "data_dir", "name"])
def test_a_path_or_a_name_is_taken_as_it_is_typed(key, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if (key, text) == ("data.path", "[x]"):
        (tmp_path / "[x]").touch()  # else it is a list of paths
    (line,) = in_hydras_grammar([f"{key}={text}"])
    assert read_by_hydra(line) == text


@pytest.mark.parametrize("text", [*ODD, "", "null", "'a'", "a\\,b", "  a "])
def test_a_printed_override_is_read_as_the_text_that_it_is_printed_for(text):
    (line,) = in_hydras_grammar([override_of("resume", text)])
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
    assert in_hydras_grammar([typed]) == [typed]
    assert read_by_hydra(typed) == value


def test_any_key_takes_text_that_hydras_grammar_lacks():
    config = compose_checked("train", ["callbacks.pictures.text=Bücher (1)"])
    assert config.callbacks.pictures.text == "Bücher (1)"


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("data.path=a.txt,b.txt", ["a.txt", "b.txt"]),
        ("data.path=jörg.txt,b (1).txt,'c,d'.txt", ["jörg.txt", "b (1).txt", "'c", "d'.txt"]),
        ("data.path='a,b.txt',c.txt", ["'a,b.txt'", "c.txt"]),
        ("name=choice(a,b)", ["a", "b"]),
        ("name=2024,1e3", ["2024", "1e3"]),
    ],
)
def test_a_sweep_over_paths_stays_a_sweep(typed, values):
    (line,) = in_hydras_grammar([typed], multirun=True)
    override = OverridesParser.create().parse_override(line)
    swept = [text.strip('"') for text in override.sweep_string_iterator()]
    assert swept == values
    # A job is read once more as a command line of its own, and means the same there.
    key = override.key_or_group
    for text in override.sweep_string_iterator():
        assert in_hydras_grammar([f"{key}={text}"]) == [f"{key}={text}"]


def test_a_tilde_is_the_home_folder_as_in_a_shell(monkeypatch):
    monkeypatch.setenv("HOME", "/home/jörg")
    for typed in ("data.path=~/x.txt", "data.path='~/x.txt'"):
        (line,) = in_hydras_grammar([typed])
        assert read_by_hydra(line) == "/home/jörg/x.txt"
    assert in_hydras_grammar(["name=~x"]) == ['name="~x"']
    assert in_hydras_grammar(["~callbacks.samples"]) == ["~callbacks.samples"]


def test_a_brace_that_no_configuration_can_hold_is_refused(script, short):
    result = script("train", *short, "data.path=a${b.txt")
    assert result.code == 2
    assert "data.path must hold no ${ but in ${NAME}, got 'a${b.txt'; rename" in result.err


@pytest.mark.parametrize("typed", ["resume=", "resume=''"])
def test_resume_without_a_run_is_refused(script, typed):
    result = script("train", typed)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "resume must name a run folder or a .ckpt file in one, got an empty name" in result.err


def test_prepare_reads_a_text_in_any_folder(script, tmp_path):
    text = tmp_path / FOLDER / "Bü=cher, (1).txt"
    text.parent.mkdir()
    shutil.copy("my.txt", text)

    folder = tmp_path / FOLDER / "prepared"
    typed = ["data=text", f"data.path={text}", f"data_dir={folder}", "tokenizer=byte"]
    assert script("prepare", *typed).code == 0
    assert len(list(folder.glob("*/meta.json"))) == 1


def words_of(command):
    """The words into which bash divides a command that is pasted into it."""
    pasted = ["bash", "-c", f"printf '%s\\0' {command}"]
    result = subprocess.run(pasted, capture_output=True, text=True, check=True)
    return result.stdout.split("\0")[:-1]


@pytest.mark.slow
def test_printed_commands_are_what_a_shell_runs(script, short, tmp_path, monkeypatch):
    here = tmp_path / FOLDER
    here.mkdir()
    text = here / "Bücher.txt"
    shutil.copy("my.txt", text)
    monkeypatch.chdir(here)

    def paste(command, *more):
        _, file, *arguments = words_of(command)
        assert Path(file).is_file()
        result = script(Path(file).stem, *arguments, *more)
        assert result.code == 0, (command, result)
        return result.out

    typed = [*short, f"data.path={text}", "runs_dir=-all runs's [ö]", "name=it's (1)"]
    stopped = script("train", *typed, "trainer.max_time=1e-3").out
    resume = re.search(r"^next     (.+)$", stopped, re.MULTILINE)[1]
    ended = paste(resume, "trainer.max_time=null")
    assert "done     3 steps" in ended

    commands = re.search(r"^next +(.+)\n +(.+)\n +(.+)$", ended, re.MULTILINE)
    assert paste(commands[1], "--prompt=Line", "--max-new-tokens=2").startswith("Line")
    assert "bits per byte" in paste(commands[2])
    assert "report.html" in paste(commands[3])

    watch = re.search(r"watch it: (tensorboard .+)$", ended, re.MULTILINE)[1]
    program, flag, folder = words_of(watch)
    assert (program, flag) == ("tensorboard", "--logdir")
    assert len(list(Path(folder).glob("it's (1)/*/config.yaml"))) == 1


@pytest.mark.parametrize("is_on_path", [True, False])
def test_the_installed_program_is_printed_as_a_shell_finds_it(monkeypatch, tmp_path, is_on_path):
    programs = Path(sys.executable).parent
    if not (programs / "gptmini").exists():
        pytest.skip("the program gptmini is not beside this Python; pip install puts it there")
    monkeypatch.setattr(sys, "argv", [str(programs / "gptmini"), "train"])
    monkeypatch.setenv("PATH", f"{programs if is_on_path else tmp_path}{os.pathsep}/usr/bin:/bin")

    command = announcements.command_line("sample", "a b")
    program, *rest = words_of(command)
    assert rest == ["sample", "a b"]
    assert program == ("gptmini" if is_on_path else str(programs / "gptmini"))
    found = subprocess.run(["bash", "-c", f"command -v {program}"], capture_output=True, text=True)
    assert found.stdout.strip() == str(programs / "gptmini")


def test_a_space_at_the_end_of_a_name_is_part_of_it(script, short, tmp_path):
    (tmp_path / "a b ").write_text("Another text. " * 99)
    (tmp_path / "a b").write_text("A text. " * 99)
    assert script("train", *short, "data.path=a b ").code == 0
    assert config_of(newest())["data"]["path"] == "a b "


def test_a_tilde_in_a_file_of_ones_own_is_the_home_folder(script, short, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    mine = "# @package _global_\ndefaults: [smoke, _self_]\nruns_dir: ~/runs\n"
    (tmp_path / "mine" / "experiment" / "mine.yaml").write_text(mine)

    result = script("train", *short, "--config-dir", "mine", "experiment=mine")
    assert result.code == 0, result.err
    assert len(list(tmp_path.glob("home/runs/smoke/*/config.yaml"))) == 1


def test_a_list_of_files_is_a_list_and_a_file_may_be_named_like_one(
    script, short, prepared, tmp_path
):
    for i, name in enumerate(("a.txt", "b.txt", "c.txt")):
        (tmp_path / name).write_text(f"Text {i}. " * 99)
    listed = script("prepare", *prepared, "data.path=[a.txt,b.txt,c.txt]", "data.val_fraction=0.5")
    assert listed.code == 0, listed.err

    many = ",".join(200 * ["a.txt", "b.txt", "c.txt"])  # longer than any name of a file
    assert script("prepare", *prepared, f"data.path=[{many}]", "data.val_fraction=0.5").code == 0

    (tmp_path / "[a.txt,b.txt]").write_text("Another text. " * 99)
    named = script("prepare", *prepared, "data.path=[a.txt,b.txt]")
    assert named.code == 0, named.err
    assert "1,247 bytes" in named.out
