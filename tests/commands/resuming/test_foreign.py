"""A foreign run folder runs no code, and does not make gptmini read, write or send anything outside it."""

import os
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from commands.resuming.kills import killed
from commands.resuming.readings import snapshot
from data.web import serving
from fuzz.inputs import broken, fuzz
from gptmini.configuration.compose import compose
from gptmini.configuration.trust import check_components
from gptmini.system.errors import UserError
from gptmini.system.files import CONFIGS
from run_folders import config_of, last, newest


def rewrite(**changes):
    """Change the stored configuration of the newest run, as a stranger could."""
    path = newest() / "config.yaml"
    path.write_text(yaml.safe_dump(config_of(newest()) | changes))


class Payload:
    """Unpickling this object creates a file."""

    def __reduce__(self):
        return os.system, ("touch executed",)


def test_a_checkpoint_with_code_in_it_is_refused_and_not_run(complete, resume):
    complete()
    checkpoint = last(newest()) | {"more": Payload()}
    for path in newest().glob("checkpoints/*.ckpt"):
        torch.save(checkpoint, path)

    for run in ("runs/latest", "runs/latest/checkpoints/best.ckpt"):
        resume(run=run).assert_refused("best.ckpt")
    assert not Path("executed").exists()


def test_a_run_with_retired_keys_resumes(complete, resume):
    complete()
    callbacks = config_of(newest())["callbacks"]
    pictures = {"_target_": "gptmini.training.Pictures", "layers": [0], "heads": None, "text": None}
    pictures |= {"max_tokens": 5, "embedding_tokens": 2048}
    overfitting = {"_target_": "gptmini.training.OverfittingNotice", "patience": 2}
    rewrite(callbacks=callbacks | {"pictures": pictures, "overfitting": overfitting})
    result = resume("trainer.max_steps=9")
    assert result.code == 0, result.err
    resumed = config_of(newest())["callbacks"]
    assert "embedding_tokens" not in resumed["pictures"]
    assert "overfitting" not in resumed


# A function that is not on Hydra's own list of refused functions.
CALL = {"_target_": "shutil.copyfile", "src": "my.txt", "dst": "executed"}
DOWNLOAD = {"_target_": "gptmini.data.PublishedText", "url": "http://127.0.0.1:9/", "folder": "."}
ADAMW = {"_target_": "gptmini.optim.AdamWSettings"}
SAMPLES = {"_target_": "gptmini.training.Samples"}
CSV = {"_target_": "lightning.pytorch.loggers.CSVLogger", "_partial_": True}
MLFLOW = {"_target_": "lightning.pytorch.loggers.MLFlowLogger", "_partial_": True}
WANDB = {"_target_": "lightning.pytorch.loggers.WandbLogger", "_partial_": True}
# Changes of a stored configuration, and words of the error line.
HOSTILE = [
    ({"optimizer": CALL}, "optimizer._target_ shutil.copyfile +optimizer= --config-dir"),
    ({"optimizer": {"_target_": "torch.hub.load"}}, "torch.hub.load"),
    ({"optimizer": {"_target_": ["os.mkdir"]}}, "['os.mkdir']"),
    ({"callbacks": {"more": CALL}}, "callbacks.more._target_"),
    ({"callbacks": {"more": DOWNLOAD}}, "callbacks.more._target_ gptmini.data.PublishedText"),
    ({"callbacks": {"more": SAMPLES}}, "callbacks.more._target_ gptmini.training.Samples"),
    ({"more": CALL}, "more._target_"),
    ({"optimizer": ADAMW | {"lr": [{"a": CALL}]}}, "optimizer.lr.0.a._target_"),
    ({"optimizer": ADAMW | {"lr": [{"a": DOWNLOAD}]}}, "optimizer.lr.0.a._target_"),
    ({"optimizer": CALL | {"_target_": "${called}"}, "called": "shutil.copyfile"}, "${called}"),
    ({"name": "${oc.env:HOME}"}, "${oc.env:HOME}"),
    ({"seed": [{"x": "\\${now:%Y}"}]}, "now"),
    ({"callbacks": {"a": {"b.c": 1}}}, "'b.c'"),
    ({"schedule": {"_target_": "gptmini.optim.LinearSchedule", "_args_": [1]}}, "schedule._args_"),
    ({"optimizer": ADAMW | {"_partial_": True}}, "optimizer._partial_ True"),
    ({"callbacks": {"samples": SAMPLES | {"_recursive_": False}}}, "callbacks.samples._recursive_"),
    ({"logger": {"tensorboard": {"_partial_": "10m"}}}, "logger.tensorboard._partial_ 10m"),
    ({"logger": {"csv": CSV | {"save_dir": "elsewhere"}}}, "logger.csv.save_dir"),
    ({"logger": {"csv": CSV | {"save_dir_": "elsewhere"}}}, "logger.csv.save_dir_"),
    ({"logger": {"csv": CSV | {"name": "../../elsewhere"}}}, "logger.csv.name ../../elsewhere"),
    ({"logger": {"csv": CSV | {"name": ".."}}}, "logger.csv.name .."),
    ({"logger": {"wandb": WANDB | {"dir": "elsewhere"}}}, "logger.wandb.dir"),
    (
        {"logger": {"mlflow": MLFLOW | {"tracking_uri": "http://127.0.0.1:9"}}},
        "http://127.0.0.1:9 MLFLOW_TRACKING_URI",
    ),
    ({"callbacks": 3}, "callbacks 3"),
    ({"callbacks": {"pictures": 3}}, "callbacks.pictures 3"),
    ({"data": None}, "data null"),
]


@pytest.mark.parametrize(("changes", "words"), HOSTILE, ids=[words for _, words in HOSTILE])
def test_a_configuration_that_calls_or_names_something_else_is_refused(
    complete, resume, tmp_path, changes, words
):
    complete()
    rewrite(**changes)
    before = snapshot(tmp_path)
    resume("trainer.max_steps=9").assert_refused(*words.split())
    assert snapshot(tmp_path) == before


FOREIGN = [
    {"_target_": "os.mkdir", "path": "ran"},
    {"_target_": "os.getcwd"},
    "${oc.create:{_target_: os.mkdir, path: ran}}",
    {"_target_": "${oc.decode:os.mkdir}", "path": "ran"},
    [{"x": {"_target_": "os.mkdir", "path": "ran"}}],
]


@pytest.mark.slow
@fuzz(200)
@given(data=st.data())
def test_foreign_code_at_any_place_of_a_configuration_is_refused(data):
    config, typed = default()
    tree = OmegaConf.to_container(config, resolve=True)
    check_components(tree, Path(), config, typed)
    with pytest.raises(UserError, match=r"^config\.yaml "):
        check_components(data.draw(broken(tree, FOREIGN)), Path(), config, typed)


@cache
def default():
    return compose("train", [])


def test_tokens_are_read_where_they_are_and_prepared_in_the_users_own_folder(
    begin, resume, tmp_path
):
    disk = tmp_path / "disk"
    with killed(1, "on_train_batch_end"):  # before the first checkpoint
        begin(f"data_dir={disk}")
    before = snapshot(disk)

    # Before the first checkpoint, only the configuration names the folder of the tokens.
    assert "data     data/my-byte-" in resume("trainer.max_steps=4").out
    rewrite(data_dir=str(disk))
    shutil.rmtree("data")
    result = resume("trainer.max_steps=5")
    assert "prepared now" in result.out, result.err
    assert list(Path("data").glob("my-byte-*"))
    assert snapshot(disk) == before

    result = resume("trainer.max_steps=6", f"++data_dir={disk}")
    assert f"data     {disk}/" in result.out, result.err
    assert "prepared before" in result.out


@pytest.mark.parametrize(
    ("option", "key"), [("shakespeare", "url"), ("text", "path"), ("text", "val_path")]
)
def test_no_text_is_downloaded_that_only_the_run_folder_names(
    complete, resume, tmp_path, option, key
):
    complete()
    shutil.rmtree("data")
    place = tmp_path / "theirs"
    own = yaml.safe_load((CONFIGS / "data" / f"{option}.yaml").read_text())
    with serving(lambda path: (200, {}, b"words that nobody published")) as server:
        changes = {"folder": str(place), "path": None, key: f"{server.url}/theirs.txt"}
        if key == "val_path":
            changes["path"] = "my.txt"
        rewrite(data=own | changes)
        resume("trainer.max_steps=9").assert_refused("only a run folder names it")
        assert server.asked == []

    assert not place.exists()
    assert not Path("data").exists()


@pytest.mark.parametrize("name", ["train.log", "checkpoints/last.ckpt", "checkpoints"])
def test_a_link_in_a_run_folder_is_refused_and_nothing_is_written_through_it(
    complete, resume, tmp_path, name
):
    complete()
    elsewhere = tmp_path / "elsewhere"
    shutil.move(newest() / name, elsewhere)
    (newest() / name).symlink_to(elsewhere)
    before = [path.read_bytes() for path in (elsewhere, *elsewhere.rglob("*")) if path.is_file()]

    said = f"{name} must be a regular file or a folder"
    resume("trainer.max_steps=9").assert_refused(said)
    after = [path.read_bytes() for path in (elsewhere, *elsewhere.rglob("*")) if path.is_file()]
    assert before == after != []


def test_a_run_goes_on_where_it_stands_and_writes_nowhere_that_it_names(complete, resume, tmp_path):
    complete()
    rewrite(runs_dir=str(tmp_path / "theirs"), folder=str(tmp_path / "theirs"))
    moved = tmp_path / "moved" / "run"
    moved.parent.mkdir()
    shutil.move(newest(), moved)
    shutil.rmtree("runs")

    result = resume("trainer.max_steps=9", run=moved)
    assert result.code == 0, result.err
    assert sorted(path.name for path in Path().iterdir()) == ["data", "moved", "my.txt"]
    assert sorted(path.name for path in moved.parent.iterdir()) == ["run"]
