"""gptmini sweep checks all runs, trains them, and reports the best.

The runs are pretended runs (tests/pretended_run.py), except in the last test.
"""

import csv
import json
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
from optuna.distributions import CategoricalDistribution

import programs
from gptmini.job import sweeping
from gptmini.job.sweeping import check_and_prepare
from gptmini.sweep import Space
from kills import check
from pretended_run import loss_of
from pretended_sweep import TRAIN
from run_folders import last

RATES = "optimizer.lr=0.01,0.03"
SPACE = (RATES, "model.n_layers=1,2")


@pytest.fixture
def sweep(script, short, monkeypatch):
    """Run gptmini sweep with the tiny run's overrides. Its runs are simulated."""
    monkeypatch.setattr(sweeping, "TRAIN", TRAIN)
    monkeypatch.setenv("SECONDS_OF_STEP", "0.005")
    return lambda *arguments: script("sweep", *short, *arguments)


def rows(name="sweep"):
    """Return the rows of a sweep's table.csv."""
    with Path("runs", name, "table.csv").open() as file:
        return list(csv.DictReader(file))


def states():
    """Return the states of the trials."""
    return [row["state"] for row in rows()]


def test_every_combination_is_trained_and_the_best_is_told(sweep, script):
    result = sweep(*SPACE, "--jobs", "2")
    assert result.code == 0, result.err
    table = rows()
    assert [(row["optimizer.lr"], row["model.n_layers"]) for row in table] == [
        ("0.01", "1"),
        ("0.01", "2"),
        ("0.03", "1"),
        ("0.03", "2"),
    ]
    assert states() == ["done"] * 4
    assert f"best     val loss {float(table[0]['loss']):.4f}, " in result.out
    assert "step 10: trial 0, runs/sweep/0" in result.out
    (train,) = [line for line in result.out.splitlines() if line.startswith("train ")]
    assert "gptmini train experiment=smoke data=text data.path=my.txt" in train
    assert train.endswith("callbacks.pictures=null optimizer.lr=0.01 model.n_layers=1")

    listed = script("runs", "runs/sweep").out
    assert [f"sweep/{number} " in listed for number in range(4)] == [True] * 4

    # In a copied folder and with other settings of computation, the same command trains nothing.
    Path("runs").rename("copy")
    elsewhere = ("trainer.device=cpu", "trainer.threads=1", "num_workers=1", "data_dir=other")
    again = sweep(*SPACE, *elsewhere, "sweep.retries=0", "--jobs", "3", "runs_dir=copy")
    assert again.code == 0, again.err
    assert "copy/sweep/" in again.out
    assert "started" not in again.out


def test_numbers_of_an_interval_are_drawn_and_more_may_follow(sweep):
    drawn = ("optimizer.lr=tag(log,interval(0.001,0.1))", "sweep.sampler=random")
    result = sweep(*drawn, "sweep.trials=3", "--jobs", "3")
    assert result.code == 0, result.err
    first = rows()
    assert len({row["optimizer.lr"] for row in first}) == 3
    assert all(0.001 <= float(row["optimizer.lr"]) <= 0.1 for row in first)

    assert sweep(*drawn, "sweep.trials=4").code == 0
    assert rows()[:3] == first
    assert len(rows()) == 4


def test_seeds_are_taken_together_as_mean_and_spread_of_each_setting(sweep):
    result = sweep("seed=1,2,5", RATES)
    assert result.code == 0, result.err
    fixed = {"optimizer.lr": "0.01"}
    losses = [loss_of(fixed | {"seed": seed}) for seed in ("1", "2", "5")]
    lines = result.out.splitlines()
    heading = max(i for i, line in enumerate(lines) if "mean loss" in line)
    mean, spread, _, *rest = lines[heading + 1].split()
    assert rest == ["3", "0.01"]
    assert float(spread) == pytest.approx(statistics.stdev(losses), abs=1e-4)
    gap = float(lines[heading + 2].split()[0]) - float(mean)
    assert gap == pytest.approx(loss_of({"optimizer.lr": "0.02"}), abs=2e-4)
    assert lines[heading + 2].split()[-1] == "0.03"
    # The recommended command does not set the seed.
    (train,) = [line for line in lines if line.startswith("train ")]
    assert train.endswith("callbacks.pictures=null optimizer.lr=0.01")


def test_what_is_tried_cannot_change_amid_a_sweep(sweep, tmp_path):
    assert sweep(RATES).code == 0
    for other, message in (
        (("optimizer.lr=0.01,0.04",), "optimizer.lr=0.01,0.03, got 0.01,0.04"),
        (SPACE, "model.n_layers=(not given), got 1,2"),
        ((RATES, "trainer.max_steps=5"), "trainer.max_steps=(not given), got 5"),
        ((RATES, "sweep.seed=2"), "sweep.seed=1, got 2"),
    ):
        sweep(*other).assert_refused(f"runs/sweep has {message}; ", "name=OTHER")
    assert sweep(RATES, "sweep.seed=2", "name=other").code == 0

    (tmp_path / "my.txt").write_text("Another text.\n" * 200)
    sweep(RATES).assert_refused("runs/sweep has text=")


def test_a_file_of_ones_own_describes_a_space(sweep, tmp_path):
    own = tmp_path / "mine" / "sweep"
    own.mkdir(parents=True)
    (own / "rates.yaml").write_text(
        "defaults: [default, _self_]\nname: rates\nparams:\n  optimizer: adamw\n  optimizer.lr: [0.01, 0.02]\n"
    )
    result = sweep("--config-dir", "mine", "sweep=rates", "optimizer.eps=1e-7")
    assert result.code == 0, result.err
    assert [row["optimizer.lr"] for row in rows("rates")] == ["0.01", "0.02"]
    assert f"--config-dir {tmp_path / 'mine'}" in result.out


def test_gpus_are_shared_in_turn(monkeypatch):
    def shares(n_devices):
        gpus = [sweeping.gpus_of(place, "cuda", n_devices) for place in range(4)]
        return [variables["CUDA_VISIBLE_DEVICES"] for variables in gpus]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
    assert shares(1) == ["2", "5", "7", "2"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert shares(2) == ["0,1", "2,3", "0,1", "2,3"]


def test_tasks_of_srun_are_workers_of_one_sweep(sweep, short, tmp_path):  # its runs are simulated
    tasks = []
    for number in range(2):
        variables = {
            "SLURM_JOB_ID": "7",
            "SLURM_NTASKS": "2",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NUM_NODES": "1",
            "SLURM_PROCID": str(number),
            "SLURM_LOCALID": str(number),
            "MASTER_ADDR": "nowhere",
            "SECONDS_OF_STEP": "0.05",
        }
        tasks.append(programs.start("sweep", *short, *SPACE, variables=variables, text=True))
    said = [task.communicate(timeout=120)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0]
    check(tmp_path / "runs" / "sweep", 4)
    assert [text.count("best     val loss") for text in said] == [1, 0]
    assert sum(text.count("started") for text in said) == 4

    # A run does not consider itself a task of srun.
    notes = (tmp_path / "runs" / "sweep" / "notes" / "0.jsonl").read_text().splitlines()
    assert json.loads(notes[0])["variables"] == []


def test_real_runs_are_trained_as_their_values_say_and_pruned_where_they_do_worse(script, short):
    steps = ("trainer.max_steps=20", "trainer.val_every_steps=5", "optimizer=adamw")
    pruner = ("callbacks=pruning", "callbacks.pruning.startup=1", "callbacks.samples=null")
    result = script("sweep", *short, "optimizer.lr=0.03,1e-9", *steps, *pruner)
    assert result.code == 0, result.err
    assert states() == ["done", "ended"]
    best, pruned = rows()
    assert best["trial"] == "0"
    # The run is saved at the step where it ended.
    assert last(Path(pruned["run"]))["global_step"] < 20

    # The recommended command trains the same weights.
    (line,) = [line for line in result.out.splitlines() if line.startswith("train ")]
    arguments = line.partition("gptmini train ")[2].split()
    assert script("train", *arguments, "trainer.threads=1", "folder=runs/again").code == 0
    for name, weight in last(Path("runs/again"))["state_dict"].items():
        assert weight.equal(last(Path(best["run"]))["state_dict"][name])

    # Compare its entire folder.
    assert script("report", "--compare", "runs/sweep").code == 0
    listed = script("runs", "runs/sweep", "--sort", "loss").out.splitlines()
    assert listed[1].startswith("runs/sweep/0 ")


def test_windows_is_refused_before_any_work(sweep, monkeypatch):
    """Windows has other signals."""
    monkeypatch.setattr("gptmini.commands.sweep.os", SimpleNamespace(name="nt"))
    sweep(RATES).assert_refused("Linux or macOS", "gptmini train -m")
    assert not Path("data").exists()


def test_with_a_budget_no_text_is_prepared_that_no_run_uses(script, short):
    seeds = {"seed": CategoricalDistribution(("1", "2"))}
    space = Space(dimensions=seeds, tried={}, fixed=[*short, "budget=10s"])
    _, text = check_and_prepare(space, None)
    assert (text, Path("data").exists()) == ("", False)
