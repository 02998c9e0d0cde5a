"""The wheel alone, installed where nothing of the clone is at hand, trains, resumes, samples and reports."""

import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from toys import lines

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
RUN = ("experiment=smoke", "data=text", "data.path=my.txt")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, as pip builds it."""
    pytest.importorskip("hatchling", reason="the build backend, a dev dependency")
    folder = tmp_path_factory.mktemp("wheel")
    options = shlex.split("--no-deps --no-build-isolation --quiet --wheel-dir .")
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), *options]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Run gptmini from the installed wheel, in an empty folder that holds a text and a folder of configurations."""
    site = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--quiet", "--target", str(site)]
    command = [sys.executable, "-m", "pip", "install", str(wheel), *options]
    subprocess.run(command, check=True, capture_output=True)

    folder = tmp_path_factory.mktemp("empty")
    (folder / "my.txt").write_text(lines(200))
    (folder / "my configs" / "experiment").mkdir(parents=True)
    mine = (
        "# @package _global_\ndefaults:\n  - smoke\n  - override /schedule: cosine\n"
        "name: mine\noptimizer:\n  lr: 0.02\n"
    )
    (folder / "my configs" / "experiment" / "mine.yaml").write_text(mine)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    where = run("-c", "from gptmini.files import CONFIGS; print(CONFIGS)")
    assert Path(where.stdout.strip()).is_relative_to(site), where

    run.folder = folder
    return run


def test_the_wheel_holds_every_configuration(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("gptmini/configs/")}
    own = (ROOT / "configs").rglob("*.yaml")
    assert packed == {f"gptmini/{path.relative_to(ROOT).as_posix()}" for path in own}


def test_it_trains_resumes_samples_evaluates_and_reports_and_python_trains_with_it(installed):
    commands = (
        ("train", *RUN),
        ("train", "resume=runs/latest", "trainer.max_steps=6"),
        ("sample", "runs/latest", "--prompt", "Line", "--max-new-tokens", "5"),
        ("evaluate", "runs/latest"),
        ("report", "runs/latest"),
        ("prepare", "data=text", "data.path=my.txt", "tokenizer=byte"),
    )
    # All in one process, because importing torch and Lightning takes seconds.
    program = f"""
import sys
import gptmini
from gptmini.commands import main
for arguments in {commands!r}:
    sys.argv = ["gptmini", *arguments]
    main()
run = gptmini.train(*{RUN!r})
model, tokenizer = gptmini.load(run.folder)
print(run.best.loss, model.config.d_model)
"""
    result = installed("-c", program)
    assert (result.returncode, result.stderr) == (0, ""), result

    loss, width = result.stdout.splitlines()[-1].split()
    assert 4 < float(loss) < 6  # log(257) is 5.5
    assert width == "16"
    assert len(list(installed.folder.glob("runs/smoke/*/report.html"))) == 1


def test_a_folder_of_configurations_adds_an_experiment(installed):
    mine = ("--config-dir", "my configs", *RUN, "experiment=mine")
    result = installed("-m", "gptmini", "train", *mine)
    assert result.returncode == 0, result.stderr

    (path,) = installed.folder.glob("runs/mine/*/config.yaml")
    assert "lr: 0.02" in path.read_text()
    assert "gptmini.optim.CosineSchedule" in path.read_text()

    refused = installed("-m", "gptmini", "train", *RUN, "experiment=mine")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "experiment must be one of " in refused.stderr
