"""Each logger stores the same values of a run as TensorBoard."""

import csv
import os
from pathlib import Path
from unittest import mock

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gptmini.runs import curves_of, read_lines, read_status
from run_folders import newest


@pytest.fixture
def run(script, short, tmp_path):
    """Return a function that trains with overrides and returns the run's folder."""

    def train(*overrides):
        result = script("train", *short, *overrides)
        assert result.code == 0, result.err
        return newest()

    return train


def curve(folder, tag):
    """Every value of a tag by step, from TensorBoard's own reader."""
    events = EventAccumulator(str(folder)).Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


@pytest.fixture
def expected(script, short, once):
    """Validation loss by step of a run with the default logger, from TensorBoard's own reader."""
    once("with the default logger", lambda: script("train", *short))
    return curve(newest(), "val/loss")


def validations(path):
    """Return the validation loss by step from a file of Lightning's CSV logger."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["val/loss"]]
    return {int(row["step"]): float(row["val/loss"]) for row in rows}


def test_lightnings_csv_logger_keeps_what_tensorboard_keeps(run, expected):
    folder = run("logger=csv")
    kept = folder / "csv" / "version_0"

    assert list(folder.glob("events.*")) == []
    assert validations(kept / "metrics.csv") == pytest.approx(expected)
    described = yaml.safe_load((kept / "hparams.yaml").read_text())
    assert described["trainer"]["max_steps"] == 4


def test_without_a_logger_a_run_keeps_its_curves_all_the_same(run, script, expected):
    folder = run("logger=none")
    kept = {"checkpoints", "config.yaml", "metrics.jsonl", "state", "train.log"}
    assert {path.name for path in folder.iterdir()} == kept
    assert dict(curves_of(read_lines(folder))["val/loss"]) == pytest.approx(expected)

    assert script("train", "resume=runs/latest", "trainer.max_steps=6").code == 0
    assert [step for step, _ in curves_of(read_lines(folder))["val/loss"]] == [2, 4, 6]
    assert script("report", "runs/latest").code == 0


def test_a_missing_package_is_named_in_one_line_before_a_run_folder_is_made(
    script, short, tmp_path, monkeypatch
):
    import lightning.pytorch.loggers.wandb as lightnings

    # Lightning's requirement is false and has a hint as its text.
    missing = mock.MagicMock(__bool__=lambda self: False)
    missing.__str__ = lambda self: (
        "Requirement not met. HINT: Try running `pip install -U 'wandb>=0.12.10'`"
    )
    monkeypatch.setattr(lightnings, "_WANDB_AVAILABLE", missing)
    result = script("train", *short, "logger=wandb")

    result.assert_refused("logger.wandb: ", "pip install -U 'wandb")
    assert not (tmp_path / "runs").exists()


def test_a_logger_without_a_login_gives_the_reason_and_leaves_no_run(script, short, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="pip install wandb")
    error = wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")
    monkeypatch.setattr(wandb, "init", mock.Mock(side_effect=error))
    result = script("train", *short, "logger=wandb")
    result.assert_refused("No API key configured", "logger.wandb.offline=true")
    assert not Path("runs").exists()


def test_the_log_of_a_run_with_a_bug_has_its_traceback(script, short, tmp_path):
    (tmp_path / "broken.py").write_text(
        "import lightning\n"
        "class Broken(lightning.Callback):\n"
        "    def on_train_start(self, trainer, module):\n"
        "        raise ZeroDivisionError('my own bug')\n"
    )
    with pytest.raises(ZeroDivisionError):
        script("train", *short, "+callbacks.mine._target_=broken.Broken")
    failed = read_status(newest())
    assert (failed.by, failed.exit_code, failed.reason) == ("ZeroDivisionError", 1, None)
    log = (newest() / "train.log").read_text()
    assert "in on_train_start\n" in log
    assert log.endswith("\nZeroDivisionError: my own bug\n")


def test_weights_and_biases_are_given_the_curves_and_what_the_configuration_says(
    script, watched, monkeypatch
):
    wandb = pytest.importorskip("wandb", reason="pip install wandb")
    start = mock.Mock()
    monkeypatch.setattr(wandb, "init", start)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    # The run has pictures and samples, but Weights & Biases does not get them: its log_image takes other arguments.
    typed = ["project=mine", "entity=team", "offline=true", "resume=never"]
    options = ("logger=wandb", "name='a#1'", *(f"logger.wandb.{change}" for change in typed))
    result = script("train", *watched, *options)
    assert result.code == 0, result.err
    folder = newest()

    given = start.call_args.kwargs
    assert (given["project"], given["entity"], given["resume"]) == ("mine", "team", "never")
    # Lightning sets an environment variable that keeps Weights & Biases offline.
    assert os.environ["WANDB_MODE"] == "dryrun"
    assert given["dir"] == str(folder.relative_to(Path.cwd()))

    logged = [call.args[0] for call in start.return_value.log.call_args_list]
    points = [
        (line["trainer/global_step"], line["val/loss"]) for line in logged if "val/loss" in line
    ]
    assert points == curves_of(read_lines(folder))["val/loss"]
    assert start.return_value.finish.called  # or the next run of this process would write here

    # Weights & Biases keeps links in the run folder, and the run resumes nevertheless. It keeps its id even if its
    # folder is renamed. An id contains no #.
    (folder / "wandb").mkdir()
    (folder / "wandb" / "latest-run").symlink_to("offline-run-1")
    folder.rename("moved")
    assert script("train", "resume=moved", "trainer.max_steps=6").code == 0
    assert start.call_args.kwargs["id"] == given["id"]
    assert given["id"].startswith(f"a-1-{folder.name}-")


def test_mlflow_keeps_what_tensorboard_keeps(run, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny alone cannot keep runs in a database")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    database = "sqlite:///other.db"
    options = (f"logger.mlflow.tracking_uri='{database}'", "logger.mlflow.experiment_name=mine")
    folder = run("logger=mlflow", *options)

    client = mlflow.MlflowClient(database)
    found = client.get_experiment_by_name("mine")
    (entry,) = client.search_runs([found.experiment_id])
    assert (entry.info.run_name, entry.info.status) == (f"smoke-{folder.name}", "FINISHED")

    history = client.get_metric_history(entry.info.run_id, "val/loss")
    points = {metric.step: metric.value for metric in history}
    assert points == pytest.approx(curve(folder, "val/loss"))
    assert entry.data.params["trainer/max_steps"] == "4"
