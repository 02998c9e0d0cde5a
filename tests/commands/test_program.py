"""The program gptmini, and the same from Python."""

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch

import gptmini
from gptmini.commands import COMMANDS, MODULES, main, start_up
from run_folders import last, newest

# Runs a program, and sends it a Ctrl-C while it imports a module.
INTERRUPTED = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(self, name, *rest):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

wanted = sys.argv[1]
sys.argv = sys.argv[2:]
sys.meta_path.insert(0, Interrupting())
if sys.argv[0] == "gptmini":
    runpy.run_module("gptmini", run_name="__main__")
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
COMMAND_FILES = {path.stem for path in (Path(gptmini.__file__).parent / "commands").glob("*.py")}


# A rank that ends by a bug. What is registered before the program begins is called when Python is taken down.
FAILING_RANK = """
import atexit
import gptmini.__main__

def fail():
    raise RuntimeError("a bug")

atexit.register(print, "taken down")
gptmini.__main__.commands.main = fail
gptmini.__main__.main()
"""


@pytest.fixture
def program(monkeypatch, capsys):
    """Run gptmini with arguments in this process: exit code, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["/somewhere/bin/gptmini", *arguments])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0

        return (code, *capsys.readouterr())

    return run


def test_alone_it_lists_its_commands_a_line_each(program):
    code, out, _ = program()
    assert code == 0
    assert re.findall(r"^  gptmini (\w+) +\S", out, re.MULTILINE) == list(COMMANDS)
    assert {MODULES.get(command, command) for command in COMMANDS} <= COMMAND_FILES
    assert program("--help") == (0, out, "")


def test_it_names_its_version(program):
    assert program("--version") == (0, f"{gptmini.__version__}\n", "")


def test_an_unknown_command_is_told_in_one_line(program):
    code, out, err = program("trian")
    known = "train, sweep, runs, prepare, sample, evaluate, export, import, report"
    assert (code, out) == (2, "")
    assert err == f"error: gptmini has no command trian; it has {known}; the nearest is train\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(program, command):
    code, out, _ = program("help", command)
    assert code == 0
    assert f"gptmini {command}" in out
    assert program(command, "--help") == (0, out, "")


def test_it_trains_resumes_samples_evaluates_and_reports(script, short, prepared, program):
    assert program("train", *short)[0] == 0

    code, out, _ = program("train", "resume=runs/latest", "trainer.max_steps=6")
    assert code == 0
    assert re.search(r"^next     gptmini sample runs/smoke/\S+$", out, re.MULTILINE)
    assert program("sample", "runs/latest", "--max-new-tokens", "3")[0] == 0
    assert "bits per byte" in program("evaluate", "runs/latest")[1]
    assert program("report", "runs/latest")[0] == 0

    # The folder of all runs of a name stands for the newest run, and the program says for which.
    newest_run = newest().relative_to(Path.cwd())
    said = f"runs/smoke means its newest run, {newest_run}\n"
    assert program("sample", "runs/smoke", "--max-new-tokens", "3")[::2] == (0, said)
    code, out, err = program("evaluate", "runs/smoke")
    assert (code, err) == (0, said)
    assert out.startswith(f"{newest_run}/checkpoints/best.ckpt on val")
    said = f"done     {newest_run} is complete at step 6; trainer.max_steps= goes further\n"
    assert said in program("train", "resume=runs/smoke")[1]
    assert "prepared before" in program("prepare", *prepared)[1]


def test_completion_finds_every_public_name():
    assert set(gptmini.__all__) <= set(dir(gptmini))


def test_flags_of_the_command_are_refused_in_python():
    with pytest.raises(gptmini.UserError, match="KEY=VALUE or GROUP=NAME, got '--config-dir'"):
        gptmini.train("--config-dir", "mine")


def test_python_dash_m_is_the_same_program():
    command = [sys.executable, "-m", "gptmini", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == f"{gptmini.__version__}\n"


@pytest.mark.parametrize(
    ("module", "called"),
    [
        ("gptmini.commands.sample", ["gptmini", "sample", "absent"]),
        ("gptmini.commands.sample", [str(SCRIPTS / "sample.py"), "absent"]),
        ("torch._C", ["gptmini", "sample", "absent"]),
        ("lightning.pytorch.trainer", ["gptmini", "train", "experiment=smoke"]),
    ],
)
def test_an_interrupt_while_a_command_is_imported_prints_no_traceback(tmp_path, module, called):
    command = [sys.executable, "-c", INTERRUPTED, module, *called]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode in (-signal.SIGINT, 130)
    assert (result.stdout, result.stderr) == ("", "")


def test_a_rank_that_a_bug_ends_fails_without_taking_python_down():
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "LOCAL_RANK": "1"}
    torchrun |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for variables, out in (({}, "taken down\n"), (torchrun, "")):
        options = {"capture_output": True, "text": True, "env": os.environ | variables}
        done = subprocess.run([sys.executable, "-c", FAILING_RANK], **options)
        assert (done.returncode, done.stdout) == (1, out)
        assert done.stderr.endswith("RuntimeError: a bug\n")


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
)
def test_importing_it_sets_how_threads_wait_unless_the_user_has(monkeypatch, chosen, expected):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    probe = "import os, gptmini; print(os.environ.get('GOMP_SPINCOUNT'))"
    said = subprocess.check_output([sys.executable, "-c", probe], text=True)
    assert said == f"{expected}\n"


def test_training_from_python_is_the_command(script, short):
    run = gptmini.train(*short)
    assert script("train", *short).code == 0

    one = last(run.folder, "best")
    two = last(newest(), "best")
    for name, weight in one["state_dict"].items():
        assert torch.equal(weight, two["state_dict"][name]), name

    best = two["callbacks"]["RunCheckpoints"]["best"]
    assert (run.best.loss, run.best.bits_per_byte, run.best.step) == tuple(best.values())
    assert (run.steps, run.stopped_by, run.exit_code) == (4, None, 0)

    model, tokenizer = gptmini.load(run.folder)
    assert model(torch.tensor([tokenizer.encode("Line")])).shape == (1, 4, 257)


def test_a_run_that_python_stopped_says_so_and_goes_on(script, short):
    run = gptmini.train(*short, "trainer.max_time=1e-3")
    assert (run.steps, run.stopped_by, run.exit_code) == (1, "the time limit", 0)

    run = gptmini.train(f"resume={run.folder}", "trainer.max_time=null")
    assert (run.steps, run.stopped_by) == (4, None)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["optimizer.lr=1,2"], "optimizer.lr=1,2 stands for several runs; gptmini sweep and -m"),
        (["trainer.devices=2"], "trainer.devices must be 1 in gptmini.train, got 2"),
        (["trainer.max_steps=["], "trainer.max_steps=[ is no list or mapping that Hydra can read"),
        (["model.n_heads=3"], "d_model must be a multiple of n_heads, got d_model=16 and n_heads"),
        ([7], "gptmini.train takes settings as KEY=VALUE or GROUP=NAME, got 7"),
    ],
)
def test_a_mistake_in_python_is_an_error_of_one_kind(script, short, overrides, said):
    with pytest.raises(gptmini.UserError, match=re.escape(said)):
        gptmini.train(*short, *overrides)


def test_training_from_python_leaves_the_process_as_it_was(script, short):
    def settings():
        hooks = (sys.excepthook, threading.excepthook, warnings.showwarning)
        loggers = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
        levels = [logging.getLogger(name).level for name in loggers]
        signals = [signal.getsignal(number) for number in signal.valid_signals()]
        return hooks, list(warnings.filters), levels, signals, list(sys.argv), dict(os.environ)

    gptmini.train(*short, "trainer.max_steps=1")  # what Lightning sets when it is imported is set
    threading.excepthook = threading.__excepthook__
    logging.getLogger("lightning.pytorch").setLevel(logging.INFO)
    before = settings()
    gptmini.train(*short, "trainer.max_steps=1")
    assert settings() == before


def test_the_collector_is_off_while_a_command_imports_and_on_again_when_it_trains(
    script, short, monkeypatch
):
    seen = []

    def noting(name):
        function = getattr(gptmini.commands.train, name)

        def note(*arguments, **keywords):
            seen.append((name, gc.isenabled()))
            return function(*arguments, **keywords)

        monkeypatch.setattr(gptmini.commands.train, name, note)

    noting("build_settings")
    noting("fit")
    assert script("train", *short).code == 0
    assert seen == [("build_settings", False), ("fit", True)]
    assert script("train", "trainer.max_step=1").code == 2
    assert gc.isenabled()


def test_what_runs_leave_behind_is_collected():
    class Cycle:
        pass

    for _ in range(2):
        start_up.set_aside()
        start_up.started()
        frozen = gc.get_freeze_count()
        cycle = Cycle()
        cycle.itself = cycle
        del cycle

    assert gc.collect() > 0
    assert gc.get_freeze_count() == frozen  # only the first start-up of a process is set aside
