"""The wheel alone, unpacked without the rest of the clone, trains, resumes, samples, evaluates and reports."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from toys import lines

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
RUN = ("experiment=smoke", "data=text", "data.path=my.txt", "callbacks.pictures=null")


def run(*command, folder, **variables):
    """Run a program with this Python in a folder. It must succeed and write nothing to stderr."""
    result = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel with the backend that pip calls."""
    pytest.importorskip("hatchling", reason="the build backend, a dev dependency")
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    run("-c", build, str(folder), folder=ROOT)
    (path,) = folder.glob("*.whl")
    return path


def test_the_image_has_a_fixed_base_and_does_not_run_as_root():
    commands = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if line]
    (base,) = (words[1] for words in commands if words[0] == "FROM")
    assert re.fullmatch(r"python:3\.\d+-\w+", base)
    *_, user = (words[1] for words in commands if words[0] == "USER")
    assert user not in ("root", "0")


def test_the_wheel_holds_every_configuration(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("gptmini/configs/")}
    own = (ROOT / "configs").rglob("*.yaml")
    assert packed == {f"gptmini/{path.relative_to(ROOT).as_posix()}" for path in own}


def test_it_trains_resumes_samples_evaluates_and_reports_and_python_loads_its_run(wheel, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)  # as pip does
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "my.txt").write_text(lines(200))

    commands = (
        ("train", *RUN),
        ("train", "resume=runs/latest", "trainer.max_steps=6"),
        ("sample", "runs/latest", "--prompt", "Line", "--max-new-tokens", "5"),
        ("evaluate", "runs/latest"),
        ("report", "runs/latest"),
    )
    # One process for all commands, because importing torch and Lightning takes seconds.
    program = f"""
import sys
import gptmini
from gptmini.commands import main
for arguments in {commands!r}:
    sys.argv = ["gptmini", *arguments]
    main()
model, tokenizer = gptmini.load("runs/latest")
print(gptmini.__file__)
print(model.config.d_model, tokenizer.decode(tokenizer.encode("Line")))
"""
    out = run("-c", program, folder=folder, PYTHONPATH=str(site))
    assert "questions.md" not in out  # the wheel has no docs
    *_, place, shown = out.splitlines()
    assert Path(place).is_relative_to(site)
    assert shown == "16 Line"
    assert len(list(folder.glob("runs/smoke/*/report.html"))) == 1
