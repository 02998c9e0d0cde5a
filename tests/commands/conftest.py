"""Scripts run inside the test's process: the same code as from a shell, without its seconds of imports."""

import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
TEXT = "".join(f"Line {i} says that {i} times {i} is {i * i}.\n" for i in range(200))
# The default run in a second: the modern model at its smallest, on a text that needs no preparation to speak of.
WATCHED = (
    "data=text",
    "data.path=my.txt",
    "tokenizer=byte",
    "model.context_length=8",
    "model.d_model=16",
    "model.n_layers=1",
    "model.n_heads=2",
    "schedule.warmup_steps=2",
    "trainer.max_steps=4",
    "trainer.global_batch_size=4",
    "trainer.val_every_steps=2",
    "trainer.val_tokens=64",
    "callbacks.scalars.every_steps=1",
    "callbacks.samples.max_new_tokens=8",
    "callbacks.checkpoints.every_steps=2",
)
SHORT = (*WATCHED, "callbacks.pictures=null")  # which take longer than the run


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
    """Overrides of a run that takes a second."""
    return SHORT


@pytest.fixture
def watched():
    """The same with pictures."""
    return WATCHED
