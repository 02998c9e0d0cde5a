"""The examples run as a reader runs them, and show what their text promises."""

import json
import math
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import gptmini
from gptmini.runs import curves_of, read_lines

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TOUR = EXAMPLES / "tour.py"
NOTEBOOK = EXAMPLES / "tour.ipynb"
SECONDS = 300  # the tour takes about 15; other tests may share the cores

LOSS_WITH_A_LOOK_BACK = 6 * math.log(10) / 14  # six random digits in a line of 14 characters
LOSS_WITHOUT = 12 * math.log(10) / 14


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Run a program with arguments in a folder; run it in this process, to avoid another import of torch."""

    def run(path, *arguments, folder=tmp_path):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")

    return run


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """Run the notebook of the tour; return its folder, its printed output, and its number of pictures."""
    nbclient = pytest.importorskip("nbclient", reason="pip install -e '.[dev]'")
    pytest.importorskip("ipykernel", reason="pip install -e '.[dev]'")
    import nbformat

    here = tmp_path_factory.mktemp("here")
    folder = tmp_path_factory.mktemp("tours") / "named by the reader"
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPTMINI_TOUR", str(folder))
        # Otherwise Jupyter would write its history and its connection file to the home folder.
        patch.setenv("IPYTHONDIR", str(folder.parent / "ipython"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder.parent / "jupyter"))
        resources = {"metadata": {"path": here}}
        nbclient.NotebookClient(notebook, timeout=SECONDS, resources=resources).execute()

    assert list(here.iterdir()) == []  # everything is in the folder that was named
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    n_pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    return folder, printed, n_pictures


@pytest.mark.slow
def test_the_tour_shows_what_its_sentences_say(tour):
    folder, out, n_pictures = tour
    assert {path.name for path in folder.iterdir()} >= {"attention.png", "numbers.txt", "runs"}
    assert n_pictures == 1
    # Rich formats output in a notebook by itself, but a run prints each line once.
    assert len(re.findall(r"^done +\d+ steps in ", out, re.MULTILINE)) == 1

    # Compare losses, attention and samples with values that can be computed without a model.
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
    assert max(shares) > 0.3  # evenly spread attention would give 0.1

    *_, after_the_heads = out.partition("of the attention is six tokens back")
    samples = re.findall(r"^(\d{6}) (\d{6})$", after_the_heads, re.MULTILINE)
    assert len(samples) == 7  # four given numbers and three invented numbers
    assert sum(first == second for first, second in samples) >= 6


@pytest.mark.slow
def test_a_sample_is_printed_from_a_run_folder(tour, program, capsys):
    arguments = ("runs/latest", "--prompt", "\n271828 ")
    program(EXAMPLES / "sample_from_python.py", *arguments, folder=tour[0])
    out = capsys.readouterr().out
    assert out.startswith("\n271828 ")
    assert len(out) == len("\n271828 ") + 200 + len("\n")
    assert set(out) <= set("0123456789 \n")


def test_the_notebook_is_what_jupytext_makes_of_the_program():
    jupytext = pytest.importorskip("jupytext", reason="pip install -e '.[dev]'")
    made = json.loads(jupytext.writes(jupytext.read(TOUR), fmt="ipynb"))
    kept = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    for cell in made["cells"] + kept["cells"]:
        del cell["id"]  # jupytext creates random ids
    assert kept == made, "run jupytext --to ipynb --update examples/tour.py"


@pytest.mark.parametrize("installed", [True, False])
def test_the_first_cell_of_the_notebook_installs_gptmini_if_it_is_missing(monkeypatch, installed):
    ipython = pytest.importorskip(
        "IPython.core.inputtransformer2", reason="pip install -e '.[dev]'"
    )
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    first = next(cell for cell in cells if cell["cell_type"] == "code")
    code = ipython.TransformerManager().transform_cell("".join(first["source"]))
    magics = []
    kernel = SimpleNamespace(run_line_magic=lambda name, line: magics.append((name, line[:7])))
    if not installed:
        monkeypatch.setitem(sys.modules, "gptmini", None)
    exec(code, {"get_ipython": lambda: kernel})
    assert magics == ([] if installed else [("pip", "install")])


def test_the_program_of_the_tour_makes_a_temporary_folder(program, tmp_path, monkeypatch):
    """Run the program only up to the cell that changes the folder; the notebook runs the rest."""
    beginning, _, _ = TOUR.read_text(encoding="utf-8").partition('# %% [markdown]\n"""\n## A text')
    (tmp_path / "beginning.py").write_text(beginning, encoding="utf-8")
    monkeypatch.setenv("GPTMINI_TOUR", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program(tmp_path / "beginning.py")
    assert Path.cwd().parent == tmp_path
    assert Path.cwd().name.startswith("gptmini-tour-")


@pytest.mark.parametrize(
    ("example", "arguments", "tour", "said"),
    [
        ("tour.py", ["--help"], "", "error: the tour takes no arguments, got --help"),
        ("tour.py", [], "tour", "error: GPTMINI_TOUR must be a folder, got tour"),
        ("sample_from_python.py", ["absent"], "", "error: absent does not exist; give a"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    program, tmp_path, monkeypatch, capsys, example, arguments, tour, said
):
    (tmp_path / "tour").touch()
    monkeypatch.setenv("GPTMINI_TOUR", tour)
    with pytest.raises(SystemExit) as end:
        program(EXAMPLES / example, *arguments)
    # Python prints an argument of sys.exit that is not a number.
    told = capsys.readouterr().err if end.value.code == 2 else end.value.code
    assert told.startswith(said)
    assert told.count("\n") <= 1


@pytest.mark.slow
def test_ones_own_module_trains_and_its_model_writes(program, tmp_path, capsys):
    """After 200 steps, the text consists of words from the training text."""
    lines = (f"Line {i} says that {i} times {i} is {i * i}.\n" for i in range(1200))
    (tmp_path / "my.txt").write_text("".join(lines))
    program(EXAMPLES / "own_training.py", "my.txt")
    written = capsys.readouterr().out
    assert any(word in written for word in ("says", "that", "times", "Line"))


@pytest.mark.slow
def test_the_training_package_trains_as_the_command_does(program, tmp_path, monkeypatch, capsys):
    lines = (f"Line {i} says that {i} times {i} is {i * i}.\n" for i in range(200))
    (tmp_path / "my.txt").write_text("".join(lines))
    program(EXAMPLES / "train_as_library.py", "my.txt", "experiment=smoke")
    printed = re.findall(r"^step (\d): val loss (.*)$", capsys.readouterr().out, re.MULTILINE)

    run = gptmini.train("data=text", "data.path=my.txt", "experiment=smoke")
    curve = curves_of(read_lines(run.folder))["val/loss"]
    assert printed == [(str(step), f"{loss:.4f}") for step, loss in curve]
    assert [step for step, _ in printed] == ["2", "4"]
