"""Run commands and scripts in the test's process: the same code as in a shell, without seconds of imports."""

import runpy
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pretended_gpu import compiling_gpu
from toys import lines

__all__ = ["compiling_gpu"]

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
# The tiny run (configs/experiment/smoke.yaml) on the text my.txt.
WATCHED = ("experiment=smoke", "data=text", "data.path=my.txt")
SHORT = (*WATCHED, "callbacks.pictures=null")  # drawing the pictures takes longer than the run
# The same text and tokenizer for prepare.py, which takes no experiments.
PREPARED = ("data=text", "data.path=my.txt", "tokenizer=byte")


def pytest_collection_modifyitems(items):
    """Mark tests of entire commands as slow: composing a configuration takes 0.25 s, and a run 0.5 s."""
    for item in items:
        if {"script", "type_command"} & {*item.fixturenames}:
            item.add_marker(pytest.mark.slow)


@dataclass
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    def assert_refused(self, *said, code=2):
        """Assert that the command printed one error line with these words, and exited with this code."""
        assert self.code == code, self
        assert self.err.startswith("error: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert all(text in self.err for text in said), self.err


@pytest.fixture
def script(tmp_path, monkeypatch, capsys):
    """Return a function that runs scripts/NAME.py with arguments in a folder with my.txt."""
    (tmp_path / "my.txt").write_text(lines(200))
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        # gptmini adds a module finder for the working folder.
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS / f"{name}.py"), *arguments])
        capsys.readouterr()
        try:
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code or 0

        return Result(code, *capsys.readouterr())

    return run


@dataclass
class Kept:
    """A copy of the working folder of an action, and the action's result."""

    folder: Path
    result: object


KEPT = {}


@pytest.fixture
def once(script, tmp_path, tmp_path_factory):
    """Run an action in the working folder, or copy its files there if an action of this name ran before.

    For runs that many tests start with. Removes other runs from the working folder. A copy does not have the files that
    another test had put into its working folder before the action.
    """

    def act_or_copy(name, act):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        if name in KEPT:
            shutil.copytree(KEPT[name].folder, tmp_path, symlinks=True, dirs_exist_ok=True)
        else:
            others = {path.name for path in tmp_path.iterdir()} - {"my.txt", "data"}
            result = act()
            folder = tmp_path_factory.mktemp("once") / "kept"
            shutil.copytree(
                tmp_path,
                folder,
                symlinks=True,
                ignore=lambda place, _: others if place == str(tmp_path) else (),
            )
            KEPT[name] = Kept(folder, result)
        return KEPT[name]

    return act_or_copy


@pytest.fixture
def trained(script, once, tmp_path):
    """Return the folder of a run of the tiny model on bytes, in the working folder."""
    once("trained on bytes", lambda: script("train", *SHORT))
    (folder,) = (tmp_path / "runs" / "smoke").iterdir()
    return folder


@pytest.fixture
def short():
    """Overrides of the tiny run without pictures."""
    return SHORT


@pytest.fixture
def watched():
    """Overrides of the tiny run with pictures."""
    return WATCHED


@pytest.fixture
def prepared():
    """Overrides for prepare.py that prepare the tiny run's text."""
    return PREPARED
