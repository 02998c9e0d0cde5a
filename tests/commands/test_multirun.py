"""gptmini train -m is Hydra's multirun: each job is a run, in this process or in a launcher's processes."""

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra

from gptmini.commands import train
from gptmini.configuration.compose import compose
from gptmini.system.files import CONFIGS
from run_folders import config_of, last


@pytest.fixture
def own_joblib_processes():
    """Processes of joblib for one test. joblib would reuse them, with their working folder, in other tests."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)
    yield
    get_reusable_executor().shutdown(wait=True)


def assert_runs(tmp_path, *rates):
    """Assert that the runs named sweep have these learning rates, and that each run has finished."""
    runs = sorted((tmp_path / "runs" / "sweep").iterdir())
    assert sorted(config_of(run)["optimizer"]["lr"] for run in runs) == sorted(rates)
    for run in runs:
        assert last(run)["global_step"] == 4


def test_a_configuration_is_composed_while_hydra_runs_a_job():
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        running = GlobalHydra.instance().hydra
        compose("train", [])
        assert GlobalHydra.instance().hydra is running


def test_each_job_is_a_run_and_tells_the_sweeper_its_best_loss(
    script, short, tmp_path, monkeypatch
):
    returned = []
    run_job = train.run_job

    def noting(*arguments):
        returned.append(run_job(*arguments))
        return returned[-1]

    monkeypatch.setattr(train, "run_job", noting)
    result = script("train", "-m", *short, "name=sweep", "optimizer.lr=1e-3,3e-4")
    assert result.code == 0, result.err
    assert_runs(tmp_path, 1e-3, 3e-4)

    losses = []
    for run in sorted((tmp_path / "runs" / "sweep").iterdir()):
        losses.append(last(run, "best")["callbacks"]["RunCheckpoints"]["best"]["loss"])
    assert sorted(returned) == sorted(losses)


def test_jobs_run_in_the_processes_of_a_launcher(script, short, tmp_path, own_joblib_processes):
    pytest.importorskip(
        "hydra_plugins.hydra_joblib_launcher", reason="pip install -e '.[launchers]'"
    )
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    result = script("train", "-m", *short, *launcher, "name=sweep", "optimizer.lr=1e-3,3e-4")
    assert result.code == 0, result.err
    assert_runs(tmp_path, 1e-3, 3e-4)


def test_a_job_that_fails_is_told_at_once_and_the_others_go_on(script, short, tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "grid.yaml").write_text(
        "# @package _global_\ndefaults: [smoke]\nname: sweep\n"
        "hydra:\n  sweeper:\n    params:\n      optimizer.lr: -1,1e-3\n"
    )
    own = ("--config-dir", "mine", "experiment=grid", "runs_dir=runs")
    result = script("train", "-m", *short, *own, "console=quiet")
    said = " failed: optimizer.lr must be at least 0, got -1\n"
    result.assert_refused("job optimizer.lr=-1 ", said)
    assert result.out == ""
    assert_runs(tmp_path, 1e-3)


def test_several_runs_are_refused_where_torchrun_starts_the_ranks_of_one(monkeypatch, capsys):
    variables = {"TORCHELASTIC_RUN_ID": "x", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    variables |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        train.main(["-m", "seed=1,2"])
    err = capsys.readouterr().err
    assert err.startswith("error: -m ")
    assert "torchrun" in err
    assert err.count("\n") == 1
