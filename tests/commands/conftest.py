"""Scripts run inside the test's process: the same code as from a shell, without its seconds of imports."""

import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
TEXT = "".join(f"Line {i} says that {i} times {i} is {i * i}.\n" for i in range(200))
# The tiny run, configs/experiment/smoke.yaml, on the text in my.txt.
WATCHED = ("experiment=smoke", "data=text", "data.path=my.txt")
SHORT = (*WATCHED, "callbacks.pictures=null")  # drawing the pictures takes longer than the run
# The same text and tokenizer for prepare.py, which has no experiments.
PREPARED = ("data=text", "data.path=my.txt", "tokenizer=byte")


@dataclass
class Result:
    """What a script did."""

    code: int
    out: str
    err: str


@pytest.fixture
def script(tmp_path, monkeypatch, capsys):
    """Run scripts/NAME.py with arguments in a folder that holds my.txt."""
    (tmp_path / "my.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS / f"{name}.py"), *arguments])
        capsys.readouterr()
        try:
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def short():
    """Overrides of the tiny run without its pictures, which takes a second."""
    return SHORT


@pytest.fixture
def watched():
    """Overrides of the tiny run with its pictures."""
    return WATCHED


@pytest.fixture
def prepared():
    """Arguments of prepare.py that prepare the text of the tiny run."""
    return PREPARED
