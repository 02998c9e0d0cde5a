"""A run in a notebook prints its lines once and writes them to train.log, although Rich formats output there itself."""

import pytest

from run_folders import newest

SECONDS = 300  # other tests may share the cores


@pytest.fixture
def cells(script, tmp_path, monkeypatch):  # script writes the text my.txt
    """Run the code of cells in one IPython kernel, and return the outputs of each cell."""
    nbclient = pytest.importorskip("nbclient", reason="pip install -e '.[dev]'")
    pytest.importorskip("ipykernel", reason="pip install -e '.[dev]'")
    from nbformat.v4 import new_code_cell, new_notebook

    # Otherwise Jupyter writes its history and its connection file to the home folder.
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))

    def run(*codes):
        notebook = new_notebook(cells=[new_code_cell(code) for code in codes])
        resources = {"metadata": {"path": tmp_path}}
        nbclient.NotebookClient(notebook, timeout=SECONDS, resources=resources).execute()
        return [cell.outputs for cell in notebook.cells]

    return run


def test_a_notebook_shows_each_line_of_a_run_once_and_none_of_a_quiet_one(cells, short, tmp_path):
    shown, quiet = cells(
        f"import gptmini; run = gptmini.train(*{short}, 'name=shown')",
        f"run = gptmini.train(*{short}, 'name=quiet', 'console=quiet')",
    )
    logs = {}
    for name in ("shown", "quiet"):
        (folder,) = (tmp_path / "runs" / name).iterdir()
        logs[name] = (folder / "train.log").read_text()
        assert "\ndone     4 steps in " in logs[name]

    assert {output.output_type for output in shown} == {"stream"}
    assert "".join(output.text for output in shown) == logs["shown"]
    assert quiet == []


def test_forced_colours_change_no_line_that_goes_to_a_file(script, short, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = script("train", *short).out
    assert "\ndone     4 steps in " in out
    assert out == (newest() / "train.log").read_text()
    assert "\x1b" not in out
