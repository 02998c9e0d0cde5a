"""The examples run as a reader runs them, and show what their sentences promise."""

import contextlib
import io
import json
import math
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TOUR = EXAMPLES / "tour.py"
NOTEBOOK = EXAMPLES / "tour.ipynb"
SECONDS = 300  # a tour takes about 15; other tests may share the cores

LOSS_WITH_A_LOOK_BACK = 6 * math.log(10) / 14  # six random digits in a line of 14 characters
LOSS_WITHOUT = 12 * math.log(10) / 14


def run_example(*arguments, folder, **variables):
    """What an example prints when it is run as a program in a folder."""
    command = [sys.executable, *map(str, arguments)]
    result = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=SECONDS,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout


def check_what_the_tour_prints(out):
    """Losses, attention and samples, against what can be worked out without a model."""
    loss = float(re.search(r"^validation loss (\S+) nats", out, re.MULTILINE)[1])
    assert LOSS_WITH_A_LOOK_BACK < loss < 0.75 * LOSS_WITHOUT

    bars = re.findall(r"^(\S) +(\d\.\d\d) +#*$", out, re.MULTILINE)
    characters = "".join(character for character, _ in bars)
    first, second = re.fullmatch(r"(\d{6})␣(\d{6})⏎", characters).groups()
    assert first == second
    losses = [float(loss) for _, loss in bars]
    assert losses[:6] == pytest.approx([math.log(10)] * 6, abs=0.1)
    assert max(losses[6:]) < 0.3

    shares = [float(share) for share in re.findall(r"head \d: (\S+) of the attention", out)]
    assert len(shares) == 4
    assert max(shares) > 0.3  # 0.1 would be an even spread

    *_, after_the_heads = out.partition("of the attention is six tokens back")
    samples = re.findall(r"^(\d{6}) (\d{6})$", after_the_heads, re.MULTILINE)
    assert len(samples) == 7  # four of given numbers, three of invented ones
    copied = [first == second for first, second in samples]
    assert sum(copied) >= 6


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """The folder of a tour that was run as a program, and what the program printed."""
    here = tmp_path_factory.mktemp("here")
    folder = tmp_path_factory.mktemp("tours") / "named by the reader"

    # In this process, which need not import torch again.
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.chdir(here)
        patch.setenv("GPTMINI_TOUR", str(folder))
        runpy.run_path(str(TOUR), run_name="__main__")

    assert list(here.iterdir()) == []  # everything is in the folder that was named
    return folder, out.getvalue()


@pytest.mark.slow
def test_the_tour_shows_what_its_sentences_say(tour):
    folder, out = tour
    check_what_the_tour_prints(out)

    names = {path.name for path in folder.iterdir()}
    assert names == {"attention.png", "data", "numbers.txt", "runs"}


@pytest.mark.slow
def test_the_tour_makes_a_temporary_folder_of_its_own(tmp_path):
    """The program is cut off after the cell that moves into the folder; other tests run the rest."""
    source = TOUR.read_text(encoding="utf-8")
    beginning, _, _ = source.partition('# %% [markdown]\n"""\n## A text')
    program = tmp_path / "beginning.py"
    program.write_text(beginning + "print(os.getcwd())\n", encoding="utf-8")

    out = run_example(program, folder=tmp_path, GPTMINI_TOUR="", TMPDIR=str(tmp_path))
    folder = Path(out.strip())
    assert folder.parent.samefile(tmp_path)
    assert folder.name.startswith("gptmini-tour-")


@pytest.mark.slow
def test_a_sample_is_printed_from_a_run_folder(tour):
    folder, _ = tour
    program = EXAMPLES / "sample_from_python.py"
    out = run_example(program, "runs/latest", "--prompt", "\n271828 ", folder=folder)
    lines = out.splitlines()
    assert lines[1].startswith("271828 ")
    assert len(out) == len("\n271828 ") + 200 + len("\n")
    assert set(out) <= set("0123456789 \n")


@pytest.mark.parametrize(
    ("arguments", "tour", "message"),
    [
        ([TOUR, "--help"], "", "error: the tour takes no arguments, got --help"),
        ([TOUR], "file", "error: GPTMINI_TOUR must be a folder, got file"),
        (
            [EXAMPLES / "sample_from_python.py", "absent"],
            "",
            "error: absent does not exist; give a",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path, arguments, tour, message):
    (tmp_path / "file").touch()
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=tmp_path,
        env=os.environ | {"GPTMINI_TOUR": tour},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode in (1, 2)
    assert result.stdout == ""
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_the_notebook_is_what_jupytext_makes_of_the_program():
    jupytext = pytest.importorskip("jupytext", reason="pip install 'gptmini[dev]'")
    made = json.loads(jupytext.writes(jupytext.read(TOUR), fmt="ipynb"))
    kept = json.loads(NOTEBOOK.read_text(encoding="utf-8"))

    for cell in made["cells"] + kept["cells"]:
        del cell["id"]  # jupytext draws new ids at random

    assert kept == made, "run jupytext --to ipynb --update examples/tour.py"


@pytest.mark.slow
def test_the_notebook_runs_and_shows_the_attention(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="pip install 'gptmini[dev]'")
    pytest.importorskip("ipykernel", reason="pip install 'gptmini[dev]'")
    import nbformat

    monkeypatch.setenv("GPTMINI_TOUR", str(tmp_path / "tour"))
    # Jupyter would write its history and its connection file to the home folder.
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=SECONDS,
        resources={"metadata": {"path": tmp_path}},
    )
    client.execute()

    printed = ""
    n_pictures = 0
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            printed += output.get("text", "")
            n_pictures += "image/png" in output.get("data", {})
    check_what_the_tour_prints(printed)
    assert n_pictures == 1


@pytest.mark.slow
def test_ones_own_module_trains_and_its_model_writes(tmp_path, monkeypatch, capsys):
    """After 200 steps the text is made of the words of the lines that it was trained on."""
    lines = (f"Line {i} says that {i} times {i} is {i * i}.\n" for i in range(1200))
    (tmp_path / "my.txt").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["own_training.py", "my.txt"])
    runpy.run_path(str(EXAMPLES / "own_training.py"), run_name="__main__")
    written = capsys.readouterr().out
    assert any(word in written for word in ("says", "that", "times", "Line"))
