"""Callbacks of a user's own and of Lightning's, added by name; what a run folder alone says of them is never called."""

import errno
import os
import re
import shlex
import signal
from pathlib import Path

import pytest
import torch
import yaml

from gptmini.training import Scalars
from run_folders import config_of, last, newest

pytestmark = pytest.mark.slow  # together they take minutes

STOP = (
    "{_target_: lightning.pytorch.callbacks.EarlyStopping, "
    "monitor: val/loss, patience: 1, min_delta: 5}"
)
LONG = ("trainer.max_steps=8",)


@pytest.fixture
def stopped(script, short, once):
    """A run of eight steps that early stopping ended at the fourth, when its loss had not fallen by 5 nats."""
    overrides = (*short, *LONG, f"+callbacks.stop={STOP}", "name=stopped")
    result = once("stopped early", lambda: script("train", *overrides)).result
    assert result.code == 0, result.err
    return result


def edit_config(change):
    """Change the configuration that the newest run keeps; returns its path."""
    path = newest() / "config.yaml"
    config = config_of(newest())
    change(config)
    path.write_text(yaml.safe_dump(config))
    return path


def test_early_stopping_ends_a_run_as_its_end_and_says_so_in_one_line(stopped):
    said = re.search(r"^early    at step 4 of 8: (.+)$", stopped.out, re.MULTILINE)
    assert "val/loss did not improve in the last 1 records" in said[1]
    assert re.search(r"^best     val loss \d\.\d{4}, ", stopped.out, re.MULTILINE)

    to_go_on = r"^         to go on: \S+ \S*scripts/train.py (.+)$"
    said = re.search(to_go_on, stopped.out, re.MULTILINE)
    expected = [f"resume={newest().relative_to(Path.cwd())}", f"+callbacks.stop={STOP}"]
    assert shlex.split(said[1]) == expected
    assert last(newest())["global_step"] == 4


def test_what_early_stopping_ended_goes_on_to_the_weights_of_a_run_without_it(
    script, short, stopped
):
    folder = newest()
    assert script("train", "resume=runs/latest", "+callbacks.stop=null").code == 0
    assert script("train", *short, *LONG, "name=straight").code == 0

    straight = last(newest())
    resumed = last(folder)
    assert resumed["global_step"] == straight["global_step"] == 8
    for name, weight in straight["state_dict"].items():
        assert torch.equal(resumed["state_dict"][name], weight)
    assert config_of(folder)["callbacks"]["stop"] is None


def test_a_callback_of_a_run_folder_is_called_only_if_it_is_typed_again(script, stopped):
    refused = script("train", "resume=runs/latest")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    part = "{'_target_': 'lightning.pytorch.callbacks.EarlyStopping'}"
    remedy = "type +callbacks.stop=... or its --config-dir again, or +callbacks.stop=null to go on"
    assert f"names {part} for callbacks.stop, which no " in refused.err
    assert remedy in refused.err
    assert last(newest())["global_step"] == 4

    # The callback remembers that it has waited, and ends the run again.
    typed = script("train", "resume=runs/latest", f"+callbacks.stop={STOP}")
    assert typed.code == 0
    assert "early    at step 6 of 8: " in typed.out
    assert last(newest())["global_step"] == 6


def test_nothing_of_what_a_file_says_is_left_in_a_part_that_is_typed_again(script, stopped):
    more = {"_target_": "os.mkdir", "path": "executed"}
    edit_config(lambda config: config["callbacks"]["stop"].update(more=more))

    assert script("train", "resume=runs/latest", f"+callbacks.stop={STOP}").code == 0
    assert not Path("executed").exists()


@pytest.mark.parametrize("group", ["callbacks", "logger"])
def test_a_key_that_looks_like_one_of_a_part_that_is_typed_is_refused(script, stopped, group):
    parts = {
        "stop": {"_target_": "x"},
        "stop.evil": {"_target_": "os.mkdir", "path": "executed"},
    }
    edit_config(lambda config: config[group].update(parts))
    result = script("train", "resume=runs/latest", f"+{group}.stop=null")

    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "must have names without dots for keys, got 'stop.evil'" in result.err
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    "value", ["${oc.env:SECRET}", "\\\\${oc.env:SECRET}", "a ${oc.env:SECRET}"]
)
def test_a_run_folder_does_not_read_the_environment(script, stopped, monkeypatch, value):
    monkeypatch.setenv("SECRET", "precious")
    path = edit_config(lambda config: config["callbacks"]["samples"].update(prompts=[value]))
    result = script("train", "resume=runs/latest", "+callbacks.stop=null")

    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "must hold plain values" in result.err
    assert "precious" not in path.read_text() + result.err


def test_a_stop_before_a_validation_does_not_hide_it_from_early_stopping(script, short):
    patient = f"+callbacks.stop={STOP.replace('patience: 1', 'patience: 2')}"
    straight = script("train", *short, *LONG, patient, "name=straight")
    assert "early    at step 6 of 8: " in straight.out

    before = Scalars.on_train_batch_end

    def stopping(self, trainer, *rest):
        before(self, trainer, *rest)
        if trainer.global_step == 4:
            signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scalars, "on_train_batch_end", stopping)
        assert script("train", *short, *LONG, patient, "name=stopped").code == 143

    resumed = script("train", "resume=runs/latest", patient)
    assert "early    at step 6 of 8: " in resumed.out
    assert last(newest())["global_step"] == 6


def test_lightnings_own_checkpoints_are_written_where_and_as_they_say(script, short):
    options = "dirpath: a/b/c, save_weights_only: true"
    part = f"{{_target_: lightning.pytorch.callbacks.ModelCheckpoint, {options}}}"
    assert script("train", *short, f"+callbacks.more={part}").code == 0

    (path,) = Path("a/b/c").iterdir()
    weights = torch.load(path, weights_only=True)["state_dict"]
    for name, weight in last(newest())["state_dict"].items():
        assert torch.equal(weight, weights[name]), name


def test_a_callback_that_keeps_more_than_its_state_is_refused_when_a_run_goes_on(script, short):
    average = "+callbacks.average={_target_: lightning.pytorch.callbacks.WeightAveraging}"
    assert script("train", *short, average).code == 0

    result = script("train", "resume=runs/latest", average, "trainer.max_steps=6")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "WeightAveraging cannot go on: it keeps more than its state_dict" in result.err


def test_a_part_can_be_typed_key_by_key(script, short):
    keys = (
        "_target_=lightning.pytorch.callbacks.ModelCheckpoint",
        "monitor=val/bits_per_byte",
        "filename=lightnings",
    )
    result = script("train", *short, *(f"+callbacks.more.{key}" for key in keys))

    assert result.code == 0, result.err
    assert (newest() / "checkpoints" / "lightnings.ckpt").exists()


def test_a_folder_of_ones_own_adds_options_and_its_parts_survive_a_resume(script, short, tmp_path):
    mine = tmp_path / "mine"
    (mine / "callbacks").mkdir(parents=True)
    (mine / "callbacks" / "careful.yaml").write_text(f"defaults: [smoke, _self_]\nstop: {STOP}\n")
    (mine / "experiment").mkdir()
    (mine / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - smoke\n  - override /callbacks: careful\n"
        "name: mine\nseed: 5\n"
        "logger:\n  more:\n    _target_: lightning.pytorch.loggers.CSVLogger\n    save_dir: csv\n"
    )

    folder = ("--config-dir", "mine")
    result = script("train", *folder, *short, *LONG, "experiment=mine")
    assert result.code == 0, result.err
    assert "early    at step 4 of 8: " in result.out
    assert newest().parent.name == "mine"
    config = config_of(newest())
    assert (config["seed"], config["callbacks"]["scalars"]["every_steps"]) == (5, 1)

    # The command that is printed after a stop names the folder too.
    stopped = script("train", *folder, *short, *LONG, "experiment=mine", "trainer.max_time=0.001")
    assert re.search(r"\nnext .* resume=\S+ --config-dir mine\n", stopped.out), stopped.out

    assert script("train", "resume=runs/latest").code == 2
    (mine / "callbacks" / "unused.yaml").write_text("a: [")
    assert script("train", *folder, "resume=runs/latest").code == 0

    # Without the file that names the class of the callback, the run cannot go on.
    (mine / "callbacks" / "unused.yaml").unlink()
    (mine / "callbacks" / "careful.yaml").write_text("a: [")
    broken = script("train", *folder, "resume=runs/latest")
    assert (broken.code, broken.err.count("\n")) == (2, 1)
    assert "mine/callbacks/careful.yaml must be YAML: " in broken.err


def test_without_callbacks_a_run_trains_and_keeps_nothing(script, watched):
    result = script("train", *watched, "callbacks=none")
    assert result.code == 0, result.err
    assert not (newest() / "checkpoints").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["+callbacks.stop=7"],
            r"\+callbacks\.stop=7 belongs to no part that gptmini has; .*needs a class",
        ),
        (
            ["+callbacks.scalar.every_steps=7"],
            r"no part that gptmini has; the nearest is callbacks\.scalars",
        ),
        (
            ["callbacks.stop.patience=3"],
            r"no configuration here has the key callbacks\.stop\.patience",
        ),
        (
            ["+callbacks.stop._target_=no.such.Class"],
            r"callbacks\.stop names no\.such\.Class, which cannot be",
        ),
        (
            [f"+callbacks.stop={STOP.replace('patience: 1', 'patients: 3')}"],
            "does not fit: ",
        ),
        (
            [f"+callbacks.stop={STOP.replace('patience: 1', 'mode: up')}"],
            "mode.* can be .*min.*max",
        ),
        (["callbacks=[default,none]"], "is no KEY=VALUE, and no GROUP=NAME"),
        (["--config-dir", "absent"], "--config-dir must be a folder, got absent"),
        (["--config-path", "."], "--config-dir adds a folder to them"),
        (["experiment=absent"], "error: experiment must be one of [a-z0-9_, ]+, got absent$"),
        (["-m", "--cfg", "job"], "--multirun and --cfg do not go together; leave out all but one"),
        (["--config-name", "mine"], "--config-dir adds a folder to them"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    ],
)
def test_mistakes_in_parts_end_in_one_line_and_no_run_folder(
    script, short, tmp_path, overrides, message
):
    result = script("train", *short, *overrides)
    assert (result.code, result.err.count("\n")) == (2, 1), result
    assert re.search(message, result.err), result.err
    assert not (tmp_path / "runs").exists()


def test_a_broken_file_of_ones_own_that_a_run_uses_is_told_in_one_line(script, short, tmp_path):
    (tmp_path / "mine" / "callbacks").mkdir(parents=True)
    (tmp_path / "mine" / "callbacks" / "broken.yaml").write_text("a: [")

    result = script("train", *short, "--config-dir", "mine", "callbacks=broken")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "mine/callbacks/broken.yaml must be YAML: " in result.err
    assert not (tmp_path / "runs").exists()


def test_early_stopping_on_what_is_not_measured_is_told_in_one_line(script, short):
    result = script("train", *short, f"+callbacks.stop={STOP.replace('val/loss', 'loss')}")
    assert (result.code, result.err.count("\n")) == (2, 1), result
    assert "metric `loss` which is not available" in result.err
    assert "`val/loss`" in result.err


def test_a_callback_whose_state_is_more_than_plain_values_is_refused(
    script, short, tmp_path, monkeypatch
):
    (tmp_path / "odd_callback.py").write_text(
        "import lightning as L\n"
        "class Kept(L.Callback):\n"
        "    def state_dict(self):\n"
        "        return {'kept': [{1, 2}]}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    result = script("train", *short, "+callbacks.odd._target_=odd_callback.Kept")

    assert (result.code, result.err.count("\n")) == (2, 1), result
    assert "Kept keeps a set in its state; a checkpoint holds only plain values" in result.err
    assert not (tmp_path / "runs").exists()


def test_a_part_that_was_added_with_two_signs_is_typed_again(script, short):
    added = "++callbacks.mine._target_=lightning.pytorch.callbacks.LearningRateMonitor"
    result = script("train", *short, *LONG, added, "trainer.max_time=0.001")
    (arguments,) = re.findall(r"\nnext +\S+ \S+train.py (.*)\n", result.out)
    resumed = script("train", *shlex.split(arguments), "trainer.max_time=null")
    assert resumed.code == 0, resumed.err


def test_a_broken_pipe_that_is_not_stdout_is_an_error(script, short, monkeypatch):
    def fail(*arguments):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr("gptmini.training.Scalars.on_train_batch_end", fail)
    result = script("train", *short)
    assert (result.code, result.err) == (2, "error: input or output: Broken pipe\n")


def test_a_part_may_have_a_mapping_with_numbers_for_keys(script, short):
    several = (
        "{_target_: lightning.pytorch.callbacks.GradientAccumulationScheduler, scheduling: {0: 1}}"
    )
    result = script("train", *short, f"+callbacks.more={several}")
    assert result.code == 0, result.err


def test_a_run_that_keeps_no_model_says_so_and_names_no_command_that_needs_it(script, short):
    result = script("train", *short, "callbacks.checkpoints=null")
    assert "\nmodel    not kept, for want of callbacks.checkpoints\n" in result.out
    assert re.search(r"\nnext     \S+ \S*report\.py \S+\n$", result.out), result.out
