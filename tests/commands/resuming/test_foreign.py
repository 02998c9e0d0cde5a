"""A run folder from elsewhere runs no code, and leads nothing that is written, read or sent out of itself."""

import io
import os
import pickle
import shutil
import urllib.request
from pathlib import Path

import pytest
import torch
import yaml

from commands.resuming.kills import killed
from commands.resuming.readings import assert_refused, snapshot
from gptmini.files import CONFIGS
from run_folders import config_of, last, newest

pytestmark = pytest.mark.slow  # together they take a minute


def rewrite(**changes):
    """Change the configuration that the newest run keeps, as a stranger could."""
    path = newest() / "config.yaml"
    path.write_text(yaml.safe_dump(config_of(newest()) | changes))


class Payload:
    """Unpickling this leaves a file."""

    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("kind", ["archive", "pickle"])
def test_a_checkpoint_with_code_in_it_is_refused_everywhere_and_not_run(
    complete, resume, script, kind
):
    complete()
    checkpoint = last(newest()) | {"more": Payload()}
    for path in newest().glob("checkpoints/*.ckpt"):
        if kind == "archive":
            torch.save(checkpoint, path)
        else:
            path.write_bytes(pickle.dumps(checkpoint))

    for run in ("runs/latest", "runs/latest/checkpoints/best.ckpt"):
        for result in (resume(run=run), script("sample", run), script("evaluate", run)):
            assert_refused(result, "best.ckpt")
    assert not Path("executed").exists()


# A call that is not on Hydra's own list of what Hydra refuses.
CALL = {"_target_": "shutil.copyfile", "src": "my.txt", "dst": "executed"}

CHANGES = {
    "a shell": {"optimizer": {"_target_": "os.system", "command": "touch executed"}},
    "a part": {"optimizer": CALL},
    "one callback more": {"callbacks": {"more": CALL}},
    "a key at the root": {"more": CALL},
    "deep inside": {"optimizer": {"_target_": "gptmini.optim.AdamWSettings", "lr": [{"a": CALL}]}},
    "a name that is known elsewhere": {"callbacks": {"more": {"_target_": "gptmini.data.load"}}},
    "by reference": {"optimizer": CALL | {"_target_": "${called}"}, "called": "shutil.copyfile"},
    "computed": {"optimizer": "${oc.create:{_target_: shutil.copyfile, src: my.txt, dst: a}}"},
    "of the environment": {"name": "${oc.env:HOME}"},
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_configuration_that_calls_something_else_is_refused_and_not_run(complete, resume, kind):
    complete()
    rewrite(**CHANGES[kind])
    before = snapshot(Path())

    # With folder= as with resume=, and wherever the configuration is only shown.
    assert_refused(resume("trainer.max_steps=9"), "config.yaml ")
    assert_refused(resume("--cfg", "job"), "config.yaml ")
    assert snapshot(Path()) == before


def test_python_in_the_yaml_of_a_configuration_is_refused_and_not_run(complete, resume):
    complete()
    with (newest() / "config.yaml").open("a") as file:
        file.write("more: !!python/object/apply:os.system [touch executed]\n")
    assert_refused(resume("trainer.max_steps=9"), "must be YAML of keys and plain values")
    assert not Path("executed").exists()


def test_a_class_that_is_typed_again_may_be_called(complete, resume):
    complete()
    own = {"_target_": "lightning.pytorch.callbacks.LambdaCallback"}
    rewrite(callbacks=config_of(newest())["callbacks"] | {"own": own})

    said = f"names {own['_target_']} for callbacks.own, which no configuration here does"
    assert_refused(resume("trainer.max_steps=9"), said)
    result = resume("trainer.max_steps=9", f"+callbacks.own._target_={own['_target_']}")
    assert result.code == 0, result.err


LOGGERS = {
    "a server": (
        {"tracking_uri": "http://localhost:1"},
        "if that is yours, set MLFLOW_TRACKING_URI",
    ),
    "an argument": ({"artifact_location": "there"}, "gives logger.mlflow the argument artifact_lo"),
}


@pytest.mark.parametrize("kind", LOGGERS)
def test_nothing_is_logged_to_a_place_of_a_stranger(complete, resume, kind):
    complete()
    change, said = LOGGERS[kind]
    mlflow = {"_target_": "lightning.pytorch.loggers.MLFlowLogger", "_partial_": True}
    rewrite(logger={"mlflow": mlflow | change})
    assert_refused(resume("trainer.max_steps=9"), said)


@pytest.fixture
def asked(monkeypatch):
    """Addresses that were asked for a text; each answers with the same few words."""
    addresses = []

    def answer(url, timeout):
        addresses.append(url)
        return io.BytesIO(b"words that nobody published")

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    return addresses


def test_tokens_are_read_where_they_are_and_prepared_in_the_users_own_folder(
    begin, resume, tmp_path
):
    disk = tmp_path / "disk"
    with killed(1, "on_train_batch_end"):  # before the first checkpoint
        begin(f"data_dir={disk}")
    before = snapshot(disk)

    # The first checkpoint says where the tokens are; before it, only the configuration says so.
    assert "data     data/text-byte-" in resume("trainer.max_steps=4").out
    rewrite(data_dir=str(disk))
    shutil.rmtree("data")
    result = resume("trainer.max_steps=5")
    assert "prepared now" in result.out, result.err
    assert list(Path("data").glob("text-byte-*"))
    assert snapshot(disk) == before

    result = resume("trainer.max_steps=6", f"data_dir={disk}")
    assert f"data     {disk}/" in result.out, result.err
    assert "prepared before" in result.out


def test_no_text_is_downloaded_that_only_the_run_folder_names(complete, resume, asked, tmp_path):
    complete()
    shutil.rmtree("data")
    own = yaml.safe_load((CONFIGS / "data" / "shakespeare.yaml").read_text())
    place = tmp_path / "theirs"
    for change in ({}, {"url": "http://localhost:1/theirs"}, {"folder": str(place)}):
        rewrite(data=own | {"folder": "data/downloads"} | change, data_dir=str(place))
        said = "must be downloaded again, and only the run's folder says from where"
        assert_refused(resume("trainer.max_steps=9"), said)

    assert asked == []
    assert not place.exists()
    assert not Path("data").exists()


PLACES = [
    "train.log",
    ".lock",
    ".config.yaml.1.tmp",
    "checkpoints/last.ckpt",
    "checkpoints/.last.ckpt.1.tmp",
    "plugins/more",
]


@pytest.mark.parametrize("name", PLACES)
def test_a_link_or_a_pipe_in_a_run_folder_is_refused_and_nothing_is_written_through_it(
    complete, resume, tmp_path, name
):
    complete()
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    path = newest() / name
    said = f"{name} must be a file or folder itself"
    for make in (lambda: path.symlink_to(mine), lambda: os.mkfifo(path)):
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        make()
        assert_refused(resume("trainer.max_steps=9"), said)
        assert_refused(resume("trainer.max_steps=9", run=newest()), said)
    assert mine.read_text() == "mine"


def test_a_folder_of_checkpoints_that_is_a_link_is_refused(complete, resume, tmp_path):
    complete()
    checkpoints = newest() / "checkpoints"
    elsewhere = tmp_path / "elsewhere"
    shutil.move(checkpoints, elsewhere)
    checkpoints.symlink_to(elsewhere)
    before = snapshot(elsewhere)

    assert_refused(resume("trainer.max_steps=9"), "checkpoints must be a file or folder itself")
    assert snapshot(elsewhere) == before


def test_a_report_replaces_a_link_in_the_run(complete, script, tmp_path):
    complete()
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    report = newest() / "report.html"
    report.symlink_to(mine)

    assert script("report", str(newest())).code == 0
    assert mine.read_text() == "mine"
    assert not report.is_symlink()


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
