"""A sweep trains every trial once, even if processes are killed.

The runs are simulated by tests/pretended_run.py, which needs no torch and no text.
"""

import json
import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from optuna.distributions import CategoricalDistribution

from gptmini.runs.run_folder import locked
from kills import check, kill_often, runs_in
from pretended_sweep import LISTED, TRAIN, loop_of, start, table_of, trials_in

RATES = {"optimizer.lr": LISTED}


def train(folder, command=TRAIN, dimensions=RATES, **options):
    """Train a sweep in a folder. Return the rows of its table."""
    loop_of(trials_in(folder, dimensions=dimensions), command, **options).run()
    return table_of(folder)


def notes_of(folder, number=0):
    """Return the records that the runs of a trial wrote."""
    return [json.loads(line) for line in (folder / "notes" / f"{number}.jsonl").open()]


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_run_gets_its_values_and_the_table_its_figures(tmp_path):
    row = train(tmp_path, CUDA_VISIBLE_DEVICES="3")[1]
    (began,) = [fact for fact in notes_of(tmp_path, 1) if "start" in fact]
    values = ["trainer.threads=1", "seed=1", "optimizer.lr=0.03", f"folder={tmp_path}/1"]
    assert began == {"start": values, "variables": [], "gpus": "3", "session": True}
    expected = len("seed") * 1 + len("optimizer.lr") * 0.03
    assert float(row["loss"]) == pytest.approx(expected)
    assert float(row["bits_per_byte"]) == pytest.approx(expected / 2)
    assert (row["trial"], row["state"], row["step"]) == ("1", "done", "10")


@pytest.mark.slow
def test_a_run_that_ends_by_a_mistake_fails_and_is_not_tried_again(tmp_path, capsys):
    rates = {"optimizer.lr": CategoricalDistribution(("9", "0.03"))}
    reason = "10 steps in a row, to step 10, had a loss that is not finite"
    for _ in range(2):
        failed, done = train(tmp_path, dimensions=rates)
        assert (failed["state"], failed["reason"]) == ("failed", reason)
        assert (done["state"], done["reason"]) == ("done", "")
    assert len([fact for fact in notes_of(tmp_path) if "start" in fact]) == 1
    assert f"failed   trial 0: {reason}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_run_is_tried_again_but_not_for_ever(tmp_path, capsys):
    suicidal = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    rows = train(tmp_path, suicidal, retries=1)
    printed = capsys.readouterr().out.splitlines()
    killed = "trial 0: its process was killed by SIGKILL"
    lines = [line for line in printed if "trial 0" in line]
    assert lines == [
        "started  trial 0: optimizer.lr=0.01",
        f"again    {killed}",
        "started  trial 0: optimizer.lr=0.01",
        f"gave up  {killed}",
    ]
    assert {row["reason"] for row in rows} == {"its process was killed by SIGKILL"}

    # The next start of the sweep tries again.
    assert [(row["state"], row["reason"]) for row in train(tmp_path)] == [("done", "")] * 2


@pytest.mark.slow
def test_a_run_that_finds_its_folder_locked_is_busy_and_has_not_failed(tmp_path):
    """A sweep was killed, and the run that it started locks the folder after another sweep has started its own run."""
    folder = tmp_path / "sweep"
    (folder / "0").mkdir(parents=True)
    sweep = start(folder, retries=0, SECONDS_OF_STEP="0.1")
    wait_for(lambda: (folder / "notes" / "0.jsonl").exists())
    with locked(folder / "0"):
        wait_for(lambda: (folder / "1" / "config.yaml").exists())
        wait_for(lambda: {"collision"} & {key for fact in notes_of(folder) for key in fact})
        time.sleep(0.5)
    assert sweep.wait(timeout=120) == 0
    assert [row["state"] for row in table_of(folder)] == ["done"] * 6


@pytest.mark.slow
def test_a_signal_saves_the_runs_and_the_same_command_typed_twice_goes_on(tmp_path):
    folder = tmp_path / "sweep"
    sweep = start(folder, SECONDS_OF_STEP="0.1")
    wait_for(lambda: (folder / "1" / "step.txt").exists())
    sweep.send_signal(signal.SIGTERM)
    assert sweep.wait(timeout=60) == 128 + signal.SIGTERM
    assert runs_in(folder) == []
    before = {trial: (folder / trial / "step.txt").read_text() for trial in ("0", "1")}
    assert {row["state"] for row in table_of(folder)} == {"stopped"}

    # Both commands train the remaining trials, and wait for each other's runs.
    both = [start(folder, SECONDS_OF_STEP="0.05") for _ in range(2)]
    assert [sweep.wait(timeout=120) for sweep in both] == [0, 0]
    check(folder, 6)
    for trial, step in before.items():
        later = notes_of(folder, trial)
        assert {"saved": int(step)} in later
        assert len([fact for fact in later if "start" in fact]) == 2


def test_a_run_that_is_stopped_before_it_has_a_folder_has_no_row(tmp_path):
    asleep = [sys.executable, "-c", "import time; time.sleep(60)"]

    def stop():
        wait_for(lambda: (tmp_path / "output" / "0.txt").exists())
        os.kill(os.getpid(), signal.SIGTERM)

    loop = loop_of(trials_in(tmp_path), asleep)
    with ThreadPoolExecutor() as pool:
        pool.submit(stop)
        assert loop.run() == signal.SIGTERM
    assert loop.rows == []


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
    assert sweep.wait(timeout=60) == 128 + signal.SIGINT

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
