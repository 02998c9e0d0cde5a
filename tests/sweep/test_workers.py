"""Workers train every trial of a sweep once, even if processes are killed, and record the results in the journal.

The runs are simulated by tests/pretended_run.py, which needs no torch and no text.
"""

import json
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gptmini.sweep import Dimension, Space
from gptmini.sweep.study import Sweep
from gptmini.sweep.worker import SweepStop, Worker
from kills import check, kill_often, runs_in, table_of
from pretended_sweep import LISTED, TRAIN, settings, start
from sweep_journals import trials_of


class Lines(list):
    """The lines that a worker printed."""

    def __call__(self, topic, text):
        self.append(f"{topic} {text}")


def work(folder, dimensions=(LISTED,), fixed=("seed=1",), command=TRAIN, variables=None, **changes):
    """Let one worker train a sweep in a folder; return the lines that it printed."""
    folder.mkdir(exist_ok=True)
    said = Lines()
    worker = Worker(
        sweep=Sweep(folder, Space(list(dimensions), list(fixed)), settings(**changes)),
        stopping=SweepStop(),
        print_topic=said,
        on_end=lambda sweep: None,
        extra=["trainer.threads=1"],
        variables=variables,
        command=command,
    )
    worker.work()
    return said


def notes_of(folder, number=0):
    """Return the records that the runs of a trial wrote."""
    return [json.loads(line) for line in (folder / "notes" / f"{number}.jsonl").open()]


def test_a_run_is_told_once_to_end_however_often_the_sweep_is(tmp_path):
    """A second SIGTERM would end a run before it is saved."""
    noted = tmp_path / "noted"
    run = (
        "import pathlib, signal, sys, time\n"
        f"noted = pathlib.Path({str(noted)!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: noted.write_text(noted.read_text() + 'told '))\n"
        "noted.write_text('started ')\n"
        "while 'told' not in noted.read_text(): time.sleep(0.05)\n"
        "time.sleep(0.5)\n"
    )
    stopping = SweepStop()
    with ThreadPoolExecutor() as pool:
        code = pool.submit(stopping.run, [sys.executable, "-c", run])
        while not noted.exists() or not noted.read_text():
            time.sleep(0.05)
        stopping.ask(signal.SIGINT)
        time.sleep(0.2)
        stopping.ask(signal.SIGINT)
        assert code.result() == 0
    assert noted.read_text() == "started told "


@pytest.mark.slow
def test_a_run_is_told_its_values_and_its_figures_are_written_down(tmp_path):
    work(tmp_path, variables={"CUDA_VISIBLE_DEVICES": "3"})
    (start,) = [fact for fact in notes_of(tmp_path, 1) if "start" in fact]
    values = ["seed=1", "optimizer.lr=0.03", "trainer.threads=1", f"folder={tmp_path}/1"]
    assert start == {
        "start": values,
        "variables": [],
        "gpus": "3",
        "session": True,
        "holds_lock": True,
    }

    # The figures come from the run's checkpoint.
    trial = trials_of(tmp_path)[1]
    expected = len("seed") * 1 + len("optimizer.lr") * 0.03
    assert trial.value == pytest.approx(expected)
    assert trial.user_attrs["best"] == {
        "loss": trial.value,
        "bits_per_byte": trial.value / 2,
        "step": 10,
    }


@pytest.mark.slow
def test_runs_on_other_tokens_are_told_by_their_bits(tmp_path):
    work(tmp_path, dimensions=[LISTED, Dimension("data.share", texts=("1",))])
    for trial in trials_of(tmp_path):
        assert trial.value == trial.user_attrs["best"]["bits_per_byte"]


@pytest.mark.slow
def test_a_run_that_ends_by_a_mistake_fails_and_is_not_tried_again(tmp_path):
    rates = [Dimension("optimizer.lr", texts=("9", "0.03"))]
    said = work(tmp_path, dimensions=rates)
    reason = "10 steps in a row, to step 10, had a loss that is not finite"
    assert f"failed trial 0: {reason}" in said
    failed, done = trials_of(tmp_path)
    assert (failed.state.name, failed.user_attrs["reason"]) == ("FAIL", reason)
    assert done.state.name == "COMPLETE"
    assert work(tmp_path, dimensions=rates) == []


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_is_given_up_until_the_next_start(tmp_path):
    suicidal = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    said = work(tmp_path, command=suicidal, retries=1)
    killed = "trial 0: its process was killed by SIGKILL"
    assert [line for line in said if "trial 0" in line] == [
        "started trial 0: optimizer.lr=0.01",
        f"again retrying {killed}",
        f"gave up {killed} (attempts: 2)",
    ]
    assert [trial.state.name for trial in trials_of(tmp_path)] == ["RUNNING"] * 2
    work(tmp_path)
    assert [trial.state.name for trial in trials_of(tmp_path)] == ["COMPLETE"] * 2
    assert [trial.user_attrs["reason"] for trial in trials_of(tmp_path)] == [None] * 2


def test_a_run_that_is_no_mistake_is_tried_again(tmp_path):
    troubled = [
        sys.executable,
        "-c",
        "print('error: No space left on device'); raise SystemExit(1)",
    ]
    said = work(tmp_path, command=troubled, retries=0)
    assert said[-1] == "gave up trial 1: No space left on device (attempts: 1)"


def test_a_run_without_a_finite_validation_fails(tmp_path):
    work(tmp_path, command=[sys.executable, "-c", ""])
    assert {trial.state.name for trial in trials_of(tmp_path)} == {"FAIL"}
    assert "last.ckpt" in trials_of(tmp_path)[0].user_attrs["reason"]


def test_a_run_that_the_pruner_has_ended_is_not_begun_again(tmp_path):
    sweep = Sweep(tmp_path, Space([LISTED], []), settings())
    trial = sweep.take()
    sweep.note(trial.number, pruned_at=4)
    trial.release()
    work(tmp_path)
    assert [trial.state.name for trial in trials_of(tmp_path)] == ["PRUNED", "COMPLETE"]
    assert not (tmp_path / "notes" / "0.jsonl").exists()


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_signal_saves_the_runs_and_the_same_command_typed_twice_goes_on(tmp_path):
    folder = tmp_path / "sweep"
    sweep = start(folder, SECONDS_OF_STEP="0.1")
    wait_for(lambda: (folder / "1" / "step.txt").exists())
    sweep.send_signal(signal.SIGTERM)
    assert sweep.wait(timeout=60) == 128 + signal.SIGTERM
    assert runs_in(folder) == []
    before = {trial: (folder / trial / "step.txt").read_text() for trial in ("0", "1")}
    assert {trial.state.name for trial in trials_of(folder)} == {"RUNNING"}

    # Both commands train the remaining trials, and wait for each other's runs.
    both = [start(folder, SECONDS_OF_STEP="0.05") for _ in range(2)]
    assert [sweep.wait(timeout=120) for sweep in both] == [0, 0]
    check(folder, 6)
    for trial, step in before.items():
        later = notes_of(folder, trial)
        assert {"saved": int(step)} in later
        assert len([fact for fact in later if "start" in fact]) == 2


@pytest.mark.slow
def test_a_second_signal_right_after_the_first_ends_a_sweep_at_once_and_its_runs_save_and_end(
    tmp_path,
):
    folder = tmp_path / "sweep"
    sweep = start(folder, SECONDS_OF_STEP="1")
    wait_for(lambda: all((folder / run / "config.yaml").exists() for run in ("0", "1")))
    sweep.send_signal(signal.SIGINT)
    time.sleep(0.1)
    sweep.send_signal(signal.SIGINT)
    # Both runs and the sweep may end within the 0.1 seconds.
    assert sweep.wait(timeout=60) in (-signal.SIGINT, 128 + signal.SIGINT)

    wait_for(lambda: not runs_in(folder))
    for run in ("0", "1"):
        step = int((folder / run / "step.txt").read_text())
        assert step < 10  # the number of steps of a simulated run
        assert {"saved": step} in notes_of(folder, run)


@pytest.mark.slow
def test_kills_at_random_instants_lose_and_double_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("SECONDS_OF_STEP", "0.05")
    kill_often(tmp_path / "killed", "grid", 3, random.Random(1), most_seconds=1.0)
    check(tmp_path / "killed", 6)

    # The table equals that of an undisturbed sweep.
    monkeypatch.setenv("SECONDS_OF_STEP", "0.001")
    kill_often(tmp_path / "undisturbed", "grid", 0, random.Random(0))
    assert table_of(tmp_path / "killed") == table_of(tmp_path / "undisturbed")
