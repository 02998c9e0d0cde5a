"""Sweeps through Hydra's own launchers: every job is checked before the first starts, and has its own run folder."""

import os
import re
import subprocess
import sys

import pytest

from gptmini.commands.launching import _Job
from run_folders import config_of, last

# The columns of the table that a sweep over one key ends with, of a job that is done.
ROW = r"^(?:sweep)? +(\S+) +(\d\.\d{4}) +(\d) +\d+ s +(\S+)$"

pytestmark = pytest.mark.slow

LAUNCHERS = {
    "basic": ("hydra/launcher=basic",),
    "joblib": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
    "submitit": ("hydra/launcher=submitit_local",),
}


@pytest.fixture
def sweep(short, script, tmp_path):
    """Run gptmini train -m in a process of its own, as a user would."""

    def run(*overrides):
        train = [sys.executable, "-m", "gptmini", "train", "-m"]
        command = [*train, *short, "console=quiet", *overrides]
        options = {"cwd": tmp_path, "capture_output": True, "text": True}
        return subprocess.run(command, check=False, timeout=300, **options)

    return run


@pytest.fixture
def own_joblib_processes():
    """Processes of joblib for one test: it would keep them, and with them their working folder, for other tests."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)
    yield
    get_reusable_executor().shutdown(wait=True)


def needed(launcher):
    """Skip the test where the launcher's package is not installed."""
    packages = {"joblib": "hydra_joblib_launcher", "submitit": "hydra_submitit_launcher"}
    package = packages.get(launcher)
    if package:
        pytest.importorskip(f"hydra_plugins.{package}", reason="pip install 'gptmini[launchers]'")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_job_has_a_run_folder_and_trains_what_its_overrides_say(
    script, short, tmp_path, request, launcher
):
    needed(launcher)
    if launcher == "joblib":
        request.getfixturevalue("own_joblib_processes")

    overrides = (*LAUNCHERS[launcher], "name=sweep", "optimizer.lr=1e-3,3e-4")
    result = script("train", "-m", *short, *overrides)
    assert result.code == 0, result.err

    runs = sorted((tmp_path / "runs" / "sweep").iterdir())
    assert sorted(config_of(run)["optimizer"]["lr"] for run in runs) == [3e-4, 1e-3]
    for run in runs:
        assert last(run)["global_step"] == 4
        assert "\ndone     4 steps" in (run / "train.log").read_text()

    # The table has the losses that the checkpoints keep, the lowest first.
    rows = re.findall(ROW, result.out, re.MULTILINE)
    expected = []
    for run in runs:
        best = last(run, "best")["callbacks"]["RunCheckpoints"]["best"]
        lr = config_of(run)["optimizer"]["lr"]
        expected.append((str(lr), f"{best['loss']:.4f}", str(best["step"])))
        assert run.name.endswith(f"_lr-{lr}")
    assert [row[:3] for row in rows] == sorted(expected, key=lambda row: row[1])
    assert {row[3] for row in rows} == {str(run.relative_to(tmp_path)) for run in runs}
    assert list((tmp_path / "runs" / ".sweeps").glob("results-*")) == []


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    "wrong", ["optimizer.lr=1e-3,-1", "trainer.max_step=1,2", "model.n_heads=2,3"]
)
def test_a_mistake_in_any_job_is_refused_before_the_first(script, short, tmp_path, launcher, wrong):
    needed(launcher)
    result = script("train", "-m", *short, *LAUNCHERS[launcher], wrong)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_sweep_that_an_experiment_describes_is_checked_and_run(script, short, tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    path = tmp_path / "mine" / "experiment" / "grid.yaml"
    described = (
        "# @package _global_\ndefaults: [smoke]\nname: grid\n"
        "hydra:\n  sweeper:\n    params:\n      optimizer.lr: {}\n"
    )

    path.write_text(described.format("1e-3,-1"))
    refused = script("train", "-m", *short, "--config-dir", "mine", "experiment=grid")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "got -1" in refused.err
    assert not (tmp_path / "runs").exists()

    path.write_text(described.format("1e-3,3e-4"))
    result = script("train", "-m", *short, "--config-dir", "mine", "experiment=grid")
    assert result.code == 0, result.err
    jobs = re.findall(r"^job (\d of \d): .*optimizer.lr=", result.out, re.MULTILINE)
    assert jobs == ["1 of 2", "2 of 2"]
    assert len(list((tmp_path / "runs" / "grid").iterdir())) == 2


def test_jobs_of_several_processes_run_in_processes_of_their_own(
    script, short, tmp_path, monkeypatch
):
    started = []
    run_in_new_process = _Job._run_in_new_process

    def note_and_run(job, overrides, label):
        outcome = run_in_new_process(job, overrides, label)
        started.append(outcome)
        return outcome

    monkeypatch.setattr(_Job, "_run_in_new_process", note_and_run)
    job = ("name=two", "trainer.devices=2", "optimizer.lr=1e-3", "seed=range(1,2)")
    result = script("train", "-m", *short, *job)
    assert result.code == 0, result.err
    assert len(started) == 1

    (run,) = (tmp_path / "runs" / "two").iterdir()
    assert config_of(run)["optimizer"]["lr"] == 1e-3

    # The process hands back what the sweep needs.
    best = last(run, "best")["callbacks"]["RunCheckpoints"]["best"]
    (outcome,) = started
    assert (outcome.loss, outcome.step) == (best["loss"], best["step"])
    assert (tmp_path / outcome.folder, outcome.exit_code) == (run, 0)
    assert run.name.endswith("_seed-1")
    row = result.out.splitlines()[-1].split()
    assert row[:3] == ["1", f"{best['loss']:.4f}", str(best["step"])]


def test_a_sweep_over_all_options_of_a_group(script, short, tmp_path):
    assert script("train", "-m", *short, "schedule=glob(*i*)", "~callbacks.checkpoints").code == 0

    runs = (tmp_path / "runs" / "smoke").iterdir()
    targets = sorted(config_of(run)["schedule"]["_target_"] for run in runs)
    assert [target.rpartition(".")[2] for target in targets] == ["cosine", "linear", "trapezoid"]


def test_a_job_that_fails_is_named_and_the_others_are_done(script, short, tmp_path):
    wild = ("optimizer=adamw", "schedule.warmup_steps=0", "trainer.max_bad_steps=2")
    result = script("train", "-m", *short, *wild, "name=wild", "optimizer.lr=1e30,1e-3")
    assert (result.code, result.err.count("\n")) == (2, 1)
    reason = "2 steps in a row, to step 3, had a loss or gradient that is not"
    assert f"optimizer.lr=1e+30 failed: {reason}" in result.err

    (tame,) = (tmp_path / "runs" / "wild").glob("*_lr-0.001")
    assert last(tame)["global_step"] == 4

    heading, first, second = result.out.splitlines()[-3:]
    assert heading.split()[:2] == ["sweep", "lr"]
    assert (first.split()[0], first.split()[-2]) == ("0.001", "done")
    assert (second.split()[0], second.split()[-1]) == ("1e+30", "failed")


def test_a_sweeper_is_told_the_best_validation_loss(sweep, tmp_path, monkeypatch):
    """A launcher that keeps what its jobs return, as sweepers that optimise do."""
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "keeping.py").write_text(
        "from hydra._internal.core_plugins.basic_launcher import BasicLauncher\n"
        "class Keeping(BasicLauncher):\n"
        "    def launch(self, job_overrides, initial_job_idx):\n"
        "        jobs = super().launch(job_overrides, initial_job_idx)\n"
        "        open('returned.txt', 'w').write(repr([job.return_value for job in jobs]))\n"
        "        return jobs\n"
    )
    launchers = tmp_path / "mine" / "hydra" / "launcher"
    launchers.mkdir(parents=True)
    (launchers / "keeping.yaml").write_text("_target_: hydra_plugins.keeping.Keeping\n")
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    monkeypatch.setenv("PYTHONPATH", path)

    keeping = ("--config-dir", "mine", "hydra/launcher=keeping")
    result = sweep(*keeping, "name=kept", "optimizer.lr=1e-3,3e-4")
    assert result.returncode == 0, result.stderr

    losses = []
    for lr in ("0.001", "0.0003"):
        (run,) = (tmp_path / "runs" / "kept").glob(f"*_lr-{lr}")
        best = last(run, "best")["callbacks"]["RunCheckpoints"]["best"]
        losses.append(best["loss"])
    assert (tmp_path / "returned.txt").read_text() == repr(losses)
