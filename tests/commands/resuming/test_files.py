"""A run goes on from any of its checkpoints, passes over the damaged ones, and names what it wrote."""

import os
import re
import zipfile
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import gptmini
from commands.resuming.kills import EACH, killed
from commands.resuming.readings import assert_refused, assert_same, curves, snapshot
from run_folders import last, newest

ASIDE = {
    "{run}": [],
    "{run}/checkpoints/last.ckpt": [],
    "{run}/checkpoints/previous.ckpt": ["last"],
    "{run}/checkpoints/best.ckpt": ["last", "previous"],
    "runs/latest/checkpoints/best.ckpt": ["last", "previous"],
}


@pytest.mark.parametrize("name", ASIDE)
def test_a_run_goes_on_from_any_of_its_files_and_later_ones_are_set_aside(straight, begin, resume, name):
    reference = straight(*EACH)
    with killed(5):
        begin(*EACH)
    folder, aside = newest(), ASIDE[name]
    before = {file: last(folder, file)["global_step"] for file in ("last", "previous", "best")}
    assert before == {"last": 5, "previous": 4, "best": 3}
    result = resume(run=name.format(run=folder.relative_to(Path.cwd())))
    assert result.code == 0
    assert_same(folder, reference)
    assert {path.name for path in folder.glob("*/set-aside*")} == {
        f"set-aside-{file}-{before[file]}.ckpt" for file in aside
    }
    said = re.findall(r"^warning  \S*/set-aside-(\w+)-\d+\.ckpt is of a later step.* set aside$", result.out, re.M)
    assert said == aside
    assert all(last(folder, f"set-aside-{file}-{before[file]}")["global_step"] == before[file] for file in aside)


def flip(path, *, in_tensor):
    """Change one bit: amid the largest tensor, or of the step that the file says it is of."""
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        content = max(map(archive.read, archive.infolist()), key=len)
        if not in_tensor:
            content = next(archive.read(entry) for entry in archive.infolist() if entry.filename.endswith("data.pkl"))
    step = content.find(b"K\5", content.find(b"global_step"))
    raw[raw.index(content) + (len(content) // 2 if in_tensor else step + 1)] ^= 4
    path.write_bytes(raw)


DAMAGES = {
    "a bit of a tensor": lambda path: flip(path, in_tensor=True),
    "a bit of the step": lambda path: flip(path, in_tensor=False),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
}

RARE = ("trainer.val_every_steps=4", "callbacks.checkpoints.every_steps=5")  # after 5 steps: last 5, best 4


@pytest.mark.parametrize(("often", "used"), [(EACH, "previous.ckpt, step 4 of 7"), (RARE, "best.ckpt, step 4 of 7")])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_last_is_named_and_the_newest_good_file_used(straight, begin, resume, damage, often, used):
    reference = straight(*often)
    with killed(5):
        begin(*often)
    DAMAGES[damage](newest() / "checkpoints" / "last.ckpt")
    result = resume()
    assert result.code == 0
    assert re.search(r"^warning  \S*/checkpoints/last\.ckpt is ", result.out, re.M)
    assert f"/checkpoints/{used}" in result.out
    assert_same(newest(), reference)


def test_when_all_are_damaged_nothing_is_written(begin, resume):
    with killed(5):
        begin(*EACH)
    for name, damage in zip(("last", "previous", "best"), ("a bit of a tensor", "truncated", "empty"), strict=True):
        DAMAGES[damage](newest() / "checkpoints" / f"{name}.ckpt")
    before = snapshot(newest())
    assert_refused(resume(), "no checkpoint to resume from: ", "last.ckpt", "previous.ckpt", "best.ckpt")
    assert snapshot(newest()) == before


def keys(tree):
    """Every key of nested dicts, lists and tuples."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield str(key)
        if isinstance(value, dict | list | tuple):
            yield from keys(value)


def test_no_file_of_a_run_holds_random_state(straight):
    folder = straight()
    found = {key for name in ("last", "previous", "best") for key in keys(last(folder, name))}
    found |= {*keys(yaml.safe_load((folder / "config.yaml").read_text())), *curves(folder)}
    found |= set(EventAccumulator(str(folder)).Reload().Tags()["scalars"])
    assert {"optimizer_states", "exp_avg", "seed", "train/loss"} <= found
    assert [key for key in found if re.search("rng|random", key, re.I)] == []


def test_a_run_of_before_versions_were_written_is_refused_in_one_line(begin, resume):
    begin()
    path = newest() / "config.yaml"
    path.write_text("".join(line for line in path.open() if not line.startswith("version:")))
    before = snapshot(newest())
    assert_refused(resume(), "was begun by gptmini 0.1.0, which ", " cannot go on with; install gptmini 0.1.0")
    assert snapshot(newest()) == before


def test_files_name_the_version_that_wrote_them(begin):
    begin()
    assert last(newest())["gptmini"]["version"] == gptmini.__version__
    assert yaml.safe_load((newest() / "config.yaml").read_text())["version"] == gptmini.__version__


def test_the_optimizers_state_is_stored_by_the_names_of_the_weights(begin):
    begin()
    checkpoint = last(newest())
    (optimizer,) = checkpoint["optimizer_states"]
    assert set(optimizer["state"]) == set(checkpoint["state_dict"])
    for name, moments in optimizer["state"].items():
        shapes = {key: tuple(tensor.shape) for key, tensor in moments.items() if key != "step"}
        assert set(shapes.values()) == {tuple(checkpoint["state_dict"][name].shape)}, name
