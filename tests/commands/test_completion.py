"""Tab completes commands, groups and keys in bash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gptmini.commands import COMMANDS, main

# Do what bash does on Tab at the end of the line $1, and print the possible words.
TAB = """
eval "$(gptmini -sc install=bash)"
COMP_LINE=$1
COMP_WORDS=($1)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
hydra_bash_completion
echo "${COMPREPLY[@]}"
"""


@pytest.fixture
def possible_words(monkeypatch, capsys):
    """Return a function that prints words for a typed line, as the shell's function calls gptmini."""

    def run(line):
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setattr(sys, "argv", ["gptmini", "-sc", "query=bash"])
        capsys.readouterr()
        main()
        out, err = capsys.readouterr()
        assert err == ""  # anything on stderr would appear in the middle of the typed line
        return out.split()

    return run


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gptmini train experiment=smo", ["experiment=smoke"]),
        ("~/.venv/bin/gptmini train optimizer=", ["optimizer=adamw", "optimizer=muon"]),
        ("gptmini train trainer.max_st", ["trainer.max_steps="]),
        ("gptmini prepare my.txt data=text data.pat", ["data.path="]),  # a key of data=text
        ("gptmini sweep model=modern,tiny data.path='a b' optimizer.lr=1,2 see", ["seed="]),
        ("gptmini sample trainer.max_st", []),
    ],
)
def test_options_of_groups_and_keys_are_completed(possible_words, line, words):
    assert possible_words(line) == words


@pytest.mark.parametrize("line", ["gptmini ", "gptmini sa"])
def test_commands_are_completed(possible_words, line):
    assert possible_words(line) == list(COMMANDS)


@pytest.mark.slow
def test_bash_finds_the_words():
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    tab = ["bash", "-c", TAB, "bash", "gptmini train trainer.max_st"]
    out = subprocess.check_output(tab, env={**os.environ, "PATH": path}, text=True)
    assert out == "trainer.max_steps=\n"
