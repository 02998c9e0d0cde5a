"""The program gptmini: a run from its first step to its report, also from Python.

The other commands are tested from start to end in their own files.
"""

import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from importlib import import_module
from pathlib import Path

import pytest
import torch

import gptmini
from gptmini.commands import COMMANDS, MODULES, main
from gptmini.commands.options import ROW
from gptmini.job import train
from run_folders import config_of, last, newest

COMMAND_FILES = {path.stem for path in (Path(gptmini.__file__).parent / "commands").glob("*.py")}
# Run gptmini, and send it Ctrl-C while it imports a module.
INTERRUPTED = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(self, name, *rest):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

wanted = sys.argv[1]
sys.argv = sys.argv[2:]
sys.meta_path.insert(0, Interrupting())
runpy.run_module("gptmini", run_name="__main__")
"""
# Run commands, and print the loaded modules at exit.
PROBE = """
import atexit, contextlib, json, sys
from gptmini.commands import run
atexit.register(lambda: print(json.dumps(sorted(sys.modules))))
for line in sys.argv[1:]:
    name, *arguments = line.split()
    with contextlib.suppress(SystemExit):
        run(name, arguments)
"""


@pytest.fixture
def program(monkeypatch, capsys):
    """Run gptmini with arguments in this process; return exit code, stdout and stderr."""

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


@pytest.fixture
def trained(script, short, once):
    """Output of a trained run in the working folder. The run has validated on all held-out text."""
    result = once("trained", lambda: script("train", *short, "trainer.val_tokens=null")).result
    assert result.code == 0, result.err
    return result.out


def test_alone_it_lists_its_commands_a_line_each(program):
    code, out, _ = program()
    assert code == 0
    assert re.findall(r"^  gptmini (\w+) +\S", out, re.MULTILINE) == list(COMMANDS)
    assert {MODULES.get(command, command) for command in COMMANDS} <= COMMAND_FILES
    assert program("--help") == (0, out, "")


def test_it_names_its_version(program):
    assert program("--version") == (0, f"{gptmini.__version__}\n", "")
    command = [sys.executable, "-m", "gptmini", "--version"]
    assert subprocess.check_output(command, text=True) == f"{gptmini.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(program, command):
    code, out, _ = program("help", command)
    assert code == 0
    assert f"gptmini {command}" in out
    assert program(command, "--help") == (0, out, "")


def test_each_row_of_a_table_of_options_is_read():
    for name in COMMAND_FILES - {"__init__"}:
        table = getattr(import_module(f"gptmini.commands.{name}"), "OPTIONS", "")
        assert len(ROW.findall(table)) == len([*filter(None, table.splitlines())]), name


def test_a_run_folder_holds_what_it_should(trained, tmp_path):
    kinds = {"events" if "tfevents" in path.name else path.name for path in newest().iterdir()}
    assert kinds == {"config.yaml", "checkpoints", "train.log", "events", "metrics.jsonl", "state"}
    config = config_of(newest())
    assert config["trainer"]["max_steps"] == 4
    assert "hydra" not in config
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "my.txt", "runs"]


def test_evaluate_repeats_the_loss_that_training_saw_from_any_folder(
    script, prepared, trained, tmp_path, monkeypatch
):
    loss, bits = re.search(r"val loss (\S+), (\S+) bits per byte", trained).groups()
    measured = script("evaluate", "runs/latest", "--batch-size", "5").out
    assert re.search(rf"^loss +{loss} nats per token", measured, re.MULTILINE)
    assert re.search(rf"^bits per byte +{bits}\b", measured, re.MULTILINE)

    # The tokens keep their place relative to the run.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    there = script("evaluate", "../runs/latest", "--batch-size", "5")
    assert (there.code, there.err) == (0, "")
    assert there.out.partition("\n")[2] == measured.partition("\n")[2]

    monkeypatch.chdir(tmp_path)
    assert script("prepare", *prepared, "tokenizer=char").code == 0
    (other,) = tmp_path.glob("data/my-char*")
    script("evaluate", "runs/latest", "--data", str(other)).assert_refused(str(other), "--text")


def test_the_name_of_runs_means_the_newest_one_and_says_so(program, trained):
    assert program("train", "resume=runs/latest", "trainer.max_steps=6")[0] == 0
    newest_run = newest().relative_to(Path.cwd())
    said = f"using {newest_run}, the latest run in runs/smoke for this command\n"
    assert program("sample", "runs/smoke", "--max-new-tokens", "3")[::2] == (0, said)
    code, out, err = program("evaluate", "runs/smoke")
    assert (code, err) == (0, said)
    assert out.startswith(f"{newest_run}/checkpoints/best.ckpt on val")
    complete = f"done     {newest_run} is complete at step 6; "
    assert complete in program("train", "resume=runs/smoke")[1]


def loaded_by(*commands):
    """The libraries that commands load in a separate process."""
    result = subprocess.run(
        [sys.executable, "-c", PROBE, *commands], capture_output=True, text=True, check=False
    )
    modules = json.loads(result.stdout.splitlines()[-1])
    return {module.partition(".")[0] for module in modules}


def test_sampling_and_evaluating_load_neither_lightning_nor_hydra(trained):
    loaded = loaded_by("sample runs/latest", "evaluate runs/latest")
    assert "torch" in loaded
    assert not loaded & {"lightning", "hydra", "omegaconf", "tensorboard"}


def test_the_tokens_of_a_prepared_folder_are_shown_without_torch(trained):
    (prepared,) = Path("data").glob("*-byte-*")
    loaded = loaded_by(f"tokens {prepared} Hello")
    assert "tiktoken" in loaded
    assert "torch" not in loaded


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "train seed=-1",
        "train model.dropout=1.5 --dry-run",
        "train optimizer.lr=x",
        "train schedule.warmup_steps=-1",
        "train tokenizer.vocab_size=1 --dry-run",
        "train trainer.max_time=-1",
        "train callbacks.samples=3",
        "sweep optimizer.lr=x,y",
    ],
)
def test_a_wrong_value_is_told_before_what_takes_seconds_is_imported(command):
    assert loaded_by(command) & {"torch", "lightning", "pydantic"} == {"pydantic"}


@pytest.mark.slow
def test_python_is_told_a_wrong_value_before_torch_and_lightning_are_imported():
    program = (
        "import sys, gptmini\n"
        "try: gptmini.train('model.dropout=1.5')\n"
        "except gptmini.UserError as error: print('dropout' in str(error))\n"
        "print(sorted({'torch', 'lightning'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "True\n[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train trainer.max_stepz=4", "train nokey=1", "train --help"])
def test_the_help_and_a_wrong_key_are_told_without_pydantic(command):
    loaded = loaded_by(command)
    assert "hydra" in loaded
    assert not loaded & {"torch", "lightning", "pydantic"}


def test_a_missing_run_is_reported_without_torch():
    commands = ("sample x", "chat x", "serve x", "evaluate x", "export x out")
    assert "torch" not in loaded_by(*commands)


@pytest.mark.slow
def test_an_interrupt_while_a_command_is_imported_prints_no_traceback(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, "torch._C", "gptmini", "sample", __file__]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode in (-signal.SIGINT, 130)
    assert (result.stdout, result.stderr) == ("", "")


def test_the_program_sets_how_threads_wait_unless_the_user_has_and_an_import_sets_nothing(
    monkeypatch,
):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    # The program gptmini, and a program that imports the package. Each prints the variable as a child process gets it.
    program = "import gptmini.__main__ as p; p.commands.main = lambda: None; p.main()"
    imported = "import gptmini; gptmini.train; gptmini.UserError"
    show = "import subprocess; print(subprocess.getoutput('echo $GOMP_SPINCOUNT'))"
    for lines, chosen, expected in (
        (program, {}, "3000"),
        (program, {"GOMP_SPINCOUNT": "7"}, "7"),
        (program, {"OMP_WAIT_POLICY": "passive"}, ""),
        (imported, {}, ""),
    ):
        command = [sys.executable, "-c", f"{lines}\n{show}"]
        said = subprocess.check_output(command, text=True, env=os.environ | chosen)
        assert said == f"{expected}\n"


def test_completion_finds_every_public_name():
    assert set(gptmini.__all__) <= set(dir(gptmini))


def test_training_from_python_is_the_command_and_leaves_the_process_as_it_was(
    trained, short, tmp_path
):
    def settings():
        hooks = (sys.excepthook, threading.excepthook, warnings.showwarning)
        loggers = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
        levels = [logging.getLogger(name).level for name in loggers]
        signals = [signal.getsignal(number) for number in signal.valid_signals()]
        return hooks, list(warnings.filters), levels, signals, list(sys.argv), dict(os.environ)

    typed = newest()
    # Reset to Python's own hook, and to the log level that importing Lightning sets.
    threading.excepthook = threading.__excepthook__
    logging.getLogger("lightning.pytorch").setLevel(logging.INFO)
    before = settings()
    run = gptmini.train(*short, "trainer.val_tokens=null", "name=python")
    assert settings() == before

    best = last(typed, "best")
    torch.testing.assert_close(
        last(run.folder, "best")["state_dict"], best["state_dict"], rtol=0, atol=0
    )
    of_command = best["callbacks"]["RunCheckpoints"]["best"]
    assert (run.best.loss, run.best.bits_per_byte, run.best.step) == tuple(of_command.values())
    assert (run.steps, run.stopped_by, run.exit_code) == (4, None, 0)

    model, tokenizer = gptmini.load(run.folder)
    assert model(torch.tensor([tokenizer.encode("Line")])).shape == (1, 4, 257)


def test_a_run_that_python_stopped_says_so_and_goes_on(script, short):
    one_device = "trainer.devices=${trainer.num_nodes}"  # auto
    run = gptmini.train(*short, one_device, "trainer.max_time=1e-3")
    assert (run.steps, run.stopped_by, run.exit_code) == (1, "the time limit", 0)

    run = gptmini.train(f"resume={run.folder}", "trainer.max_time=null")
    assert (run.steps, run.stopped_by) == (4, None)


def test_the_collector_is_off_while_a_command_imports_and_on_again_when_it_trains(
    script, short, monkeypatch
):
    seen = []
    build_callbacks = train.build_callbacks

    def building(settings):
        seen.append(gc.isenabled())
        return build_callbacks(settings)

    def assembling(*arguments):
        seen.append(gc.isenabled())
        raise gptmini.UserError("enough")

    monkeypatch.setattr(train, "build_callbacks", building)
    monkeypatch.setattr(train, "assemble", assembling)
    script("train", *short).assert_refused("enough")
    assert seen == [False, True]
    assert script("train", "trainer.max_step=1").code == 2
    assert gc.isenabled()


def test_forced_colours_change_no_line_that_goes_to_a_file(script, short, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = script("train", *short).out
    assert "\ndone     4 steps in " in out
    assert out == (newest() / "train.log").read_text()
    assert "\x1b" not in out
