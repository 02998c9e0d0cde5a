"""Files in the working folder are imported for classes that a configuration names, and never replace a library."""

import os
import subprocess
import sys
from importlib.machinery import PathFinder

import pytest

from gptmini.job.sweeping import TRAIN

EXECUTED = "raise SystemExit('a file of the working folder was executed')"


@pytest.fixture
def hide(monkeypatch):
    """Hide an installed library, as if pip had not installed it."""

    class Uninstalled:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if path is None and name == library:
                path = [place for place in sys.path if "site-packages" not in place]
            return PathFinder.find_spec(name, path, target)

    def hide_library(name):
        nonlocal library
        library = name
        for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)

    library = ""
    finders = [Uninstalled if finder is PathFinder else finder for finder in sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", finders)
    return hide_library


@pytest.mark.parametrize(
    ("library", "command", "extra"),
    [
        ("optuna", ("sweep", "optimizer.lr=0.1,0.2"), "[sweep]'"),
        ("gguf", ("export", "runs/latest", "out.gguf"), "[gguf]'"),
        ("pyarrow", ("prepare", "data=text", "data.path=my.parquet"), "[data]'"),
    ],
)
def test_a_file_is_not_run_in_the_place_of_a_library_that_is_not_installed(
    trained, script, hide, tmp_path, library, command, extra
):
    (tmp_path / f"{library}.py").write_text(EXECUTED)
    (tmp_path / "my.parquet").write_bytes(b"PAR1")
    hide(library)
    script(*command).assert_refused(extra)


def test_a_file_of_a_missing_librarys_name_is_a_class_of_ones_own_where_it_is_named(
    script, short, hide, tmp_path
):
    (tmp_path / "optuna.py").write_text(
        "import lightning\n"
        "class Mine(lightning.Callback):\n"
        "    def on_train_end(self, trainer, module):\n"
        "        print('mine at', trainer.global_step)\n"
    )
    hide("optuna")
    result = script("train", *short, "+callbacks.mine._target_=optuna.Mine")
    assert "mine at 4\n" in result.out


@pytest.mark.slow
@pytest.mark.parametrize("program", [(sys.executable, "-m", "gptmini", "train"), TRAIN])
def test_a_file_hides_no_library_from_a_program_that_python_starts_by_its_name(tmp_path, program):
    (tmp_path / "hydra.py").write_text(EXECUTED)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [*program, "trainer.max_stepz=1"]
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert told.stderr.startswith("error: ")
    assert "trainer.max_stepz" in told.stderr
