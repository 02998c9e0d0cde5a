"""What a sweep tells of its jobs, before the first and after the last."""

import os
import re
import signal
import subprocess
import sys

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from gptmini.commands import multirun
from gptmini.commands.jobs import _expand
from gptmini.commands.multirun import (
    JobResult,
    Outcome,
    label_of,
    read_results,
    short_names,
    table,
    write_result,
)
from gptmini.commands.signals import passing_signals_on
from gptmini.training import Scalars
from gptmini.user_error import UserError
from run_folders import last

VARIED = ("optimizer.lr", "model.n_layers")


def result(number, lr, n_layers, loss=None, **more):
    """What became of a job that took a minute and a half."""
    outcome = None
    if loss is not None or "stopped_by" in more:
        outcome = Outcome(
            loss=loss,
            bits_per_byte=None,
            step=None if loss is None else 40,
            folder=f"runs/x/{number}",
            stopped_by=more.pop("stopped_by", None),
            exit_code=0,
        )
    overrides = ["name=x", f"optimizer.lr={lr}", f"model.n_layers={n_layers}"]
    return JobResult(number=number, overrides=overrides, seconds=90.2, outcome=outcome, **more)


def test_the_best_job_is_first_and_each_varied_key_is_a_column():
    jobs = [result(0, "0.1", "2", 4.5), result(1, "0.1", "16", 3.25), result(2, "0.02", "2", 3.5)]
    assert table(jobs, VARIED) == [
        "lr    n_layers  best loss  step  time        folder",
        "0.1   16        3.2500     40    1 min 30 s  runs/x/1",
        "0.02  2         3.5000     40    1 min 30 s  runs/x/2",
        "0.1   2         4.5000     40    1 min 30 s  runs/x/0",
    ]


def test_jobs_that_were_not_done_are_rows_that_say_so():
    stopped = result(1, "0.2", "2", 4.0, stopped_by="SIGINT")
    jobs = [
        result(0, "0.1", "2", failed=True),
        stopped,
        result(2, "0.3", "2", stopped_by="SIGTERM"),
    ]
    grid = [job.overrides for job in jobs] + [["optimizer.lr=0.4", "model.n_layers=2"]]

    for interrupted, silent in ((True, "not finished"), (False, "no result came back")):
        heading, *rows = table(jobs, VARIED, grid, interrupted=interrupted)
        assert heading.split()[-2:] == ["ending", "folder"]
        shown = [re.split("  +", row) for row in rows]
        assert shown == [
            ["0.2", "2", "4.0000", "40", "1 min 30 s", "stopped by SIGINT", "runs/x/1"],
            ["0.1", "2", "1 min 30 s", "failed"],
            ["0.3", "2", "1 min 30 s", "stopped by SIGTERM", "runs/x/2"],
            ["0.4", "2", silent],
        ]


def test_a_result_is_read_as_it_was_written(tmp_path):
    results = [result(0, "0.1", "2", 1 / 3), result(11, "1", "2", failed=True)]
    for one in results:
        write_result(one, tmp_path)
    assert sorted(read_results(tmp_path), key=lambda one: one.number) == results


@pytest.mark.parametrize(
    ("overrides", "varied", "label"),
    [
        (["seed=3", "optimizer.lr=0.01", "model.n_layers=2"], VARIED, "lr-0.01_n_layers-2"),
        (
            ["optimizer.lr=1", "model.lr=2"],
            ("optimizer.lr", "model.lr"),
            "optimizer.lr-1_model.lr-2",
        ),
        (["data.path=a/b/my.txt"], ("data.path",), "path-my.txt"),
        (["optimizer.betas=[0.9,0.95]"], ("optimizer.betas",), "betas-0.9,0.95"),
        (["model=tiny", "+callbacks.x.y='a b'"], ("model", "callbacks.x.y"), "model-tiny_y-a b"),
        (["name=a", "seed=1"], ("name",), ""),
        (["name=a", "seed=1"], (), ""),
    ],
)
def test_a_label_names_what_was_varied_and_nothing_else(overrides, varied, label):
    assert label_of(overrides, varied) == label


def test_short_names_tell_keys_apart():
    keys = ["a.b.c", "d.b.c", "e.c", "c", "f.g"]
    assert list(short_names(keys).values()) == ["a.b.c", "d.b.c", "e.c", "c", "g"]


@pytest.mark.parametrize(
    "typed", [["a=1,2", "b=3"], ["a=1,2", "b=x,y", "a=5,6,7"], ["a=1", "a=2"], ["+a=1,2", "b=3"]]
)
def test_jobs_are_expanded_as_hydras_own_sweeper_does(typed):
    parsed = OverridesParser.create().parse_overrides(typed)
    (expected,) = BasicSweeper.split_arguments(parsed, None)

    def plain(jobs):
        return [[text.rstrip("=") for text in job] for job in jobs]

    assert plain(_expand(typed, None)) == plain(expected)


@pytest.mark.parametrize(
    ("command", "wrong", "said"),
    [
        ("prepare", ("tokenizer=bpe", "tokenizer.vocab_size=300,100"), "got 100"),
        ("prepare", ("data.val_fraction=0.1,2",), "val_fraction must be a number above 0"),
        ("prepare", ("data.path=my.txt,missing.txt",), "missing.txt, which does not exist"),
        ("train", ("data.path=my.txt,missing.txt",), "missing.txt, which does not exist"),
        ("train", ("tokenizer=bpe", "tokenizer.vocab_size=300,100"), "got 100"),
    ],
)
def test_the_text_and_the_tokenizer_of_every_job_are_checked_before_the_first(
    script, short, prepared, tmp_path, command, wrong, said
):
    arguments = prepared if command == "prepare" else short
    result = script(command, "-m", *arguments, *wrong)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert said in result.err
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_ends_the_whole_sweep_with_the_table_of_what_was_done(
    script, short, tmp_path, monkeypatch
):
    log = Scalars.on_train_batch_end

    def interrupt(self, trainer, *rest):
        log(self, trainer, *rest)
        if trainer.global_step == 3 and "seed-2" in str(trainer.default_root_dir):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Scalars, "on_train_batch_end", interrupt)
    result = script("train", "-m", *short, "callbacks.samples=null", "seed=1,2,3")

    assert result.code == 130
    rows = [re.split("  +", line) for line in result.out.splitlines()[-4:]]
    assert rows[0][:2] == ["sweep", "seed"]
    endings = {row[1]: row for row in rows[1:]}
    assert endings["1"][-2] == "done"
    assert endings["2"][-2] == "stopped by SIGINT"
    assert endings["3"][1:] == ["3", "not finished"]

    (stopped,) = tmp_path.glob("runs/smoke/*_seed-2")
    assert last(stopped)["global_step"] == 3
    assert list(tmp_path.glob("runs/smoke/*_seed-3")) == []


# Ends with the number of the signal that comes, or with 7 if none does.
CHILD = """
import signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: sys.exit(number))
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("number", "seconds", "code"),
    # A terminal sends Ctrl-C to the other process itself, so that process is not sent a second one.
    [(signal.SIGTERM, 30, signal.SIGTERM), (signal.SIGINT, 0.2, 7)],
)
def test_a_signal_lets_the_process_of_a_job_end_by_itself(number, seconds, code):
    before = signal.getsignal(number)
    with passing_signals_on() as signals:
        command = [sys.executable, "-c", CHILD, str(seconds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            signals.pass_on_to(process)
            assert process.stdout.readline() == "ready\n"
            os.kill(os.getpid(), number)
            assert process.wait(timeout=20) == code
    assert signals.first == number
    assert signal.getsignal(number) == before


def test_a_signal_that_is_turned_off_stays_off_in_the_process_of_a_job(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with passing_signals_on():
            program = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
            said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
        assert said.stdout == b"True\n"
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("value", ["x", "{}", "[1]"])
def test_a_variable_that_no_sweep_has_set_is_refused(monkeypatch, value):
    monkeypatch.setenv(multirun.JOB_VARIABLE, value)
    with pytest.raises(UserError, match="GPTMINI_JOB must be what a sweep sets for its jobs"):
        multirun.Assignment.take()
