"""A run goes on from any of its checkpoints, passes over the damaged ones, and names what it wrote."""

import os
import re
import zipfile
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import gptmini
from commands.resuming.kills import EACH, killed
from commands.resuming.readings import assert_refused, assert_same, curves, snapshot
from run_folders import config_of, last, newest

pytestmark = pytest.mark.slow  # together they take minutes

ASIDE = {
    "{run}": [],
    "{run}/checkpoints/last.ckpt": [],
    "{run}/checkpoints/previous.ckpt": ["last"],
    "{run}/checkpoints/best.ckpt": ["last", "previous"],
    "runs/latest/checkpoints/best.ckpt": ["last", "previous"],
}


@pytest.mark.parametrize("name", ASIDE)
def test_a_run_goes_on_from_any_of_its_files_and_later_ones_are_set_aside(
    straight, interrupted, resume, name
):
    reference = straight(*EACH)
    interrupted(*EACH)
    folder = newest()
    aside = ASIDE[name]
    before = {file: last(folder, file)["global_step"] for file in ("last", "previous", "best")}
    assert before == {"last": 5, "previous": 4, "best": 3}

    result = resume(run=name.format(run=folder.relative_to(Path.cwd())))
    assert result.code == 0
    assert_same(folder, reference)
    expected = {f"set-aside-{file}-{before[file]}.ckpt" for file in aside}
    assert {path.name for path in folder.glob("*/set-aside*")} == expected

    said = r"^warning  \S*/set-aside-(\w+)-\d+\.ckpt is of a later step.* set aside$"
    assert re.findall(said, result.out, re.M) == aside
    for file in aside:
        assert last(folder, f"set-aside-{file}-{before[file]}")["global_step"] == before[file]


def test_a_run_goes_on_from_a_file_that_was_set_aside(straight, interrupted, resume):
    reference = straight(*EACH)
    interrupted(*EACH)
    checkpoints = newest() / "checkpoints"
    assert resume(run=checkpoints / "best.ckpt").code == 0

    result = resume(run=checkpoints / "set-aside-last-5.ckpt")
    assert "set-aside-last-5.ckpt, step 5 of 7" in result.out
    assert_same(newest(), reference)


def test_a_run_that_went_back_to_such_a_file_goes_on_there_where_it_was_killed_at_once(
    straight, interrupted, resume
):
    reference = straight(*EACH)
    interrupted(*EACH)
    checkpoints = newest() / "checkpoints"
    assert resume(run=checkpoints / "best.ckpt").code == 0
    with killed(6, "on_train_batch_end"):
        resume(run=checkpoints / "set-aside-last-5.ckpt")

    assert "checkpoints/previous.ckpt, step 5 of 7" in resume().out
    assert_same(newest(), reference)


def test_a_run_that_was_killed_between_the_two_renames_of_a_save_goes_on(
    straight, interrupted, resume
):
    reference = straight(*EACH)
    interrupted(*EACH)
    checkpoints = newest() / "checkpoints"
    (checkpoints / "last.ckpt").replace(checkpoints / "previous.ckpt")

    assert "/checkpoints/previous.ckpt, step 5 of 7" in resume().out
    assert_same(newest(), reference)


def flip(path, *, in_tensor):
    """Change one bit: amid the largest tensor, or of the step that the file says it is of."""
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        members = {entry.filename: archive.read(entry) for entry in archive.infolist()}

    if in_tensor:
        content = max(members.values(), key=len)
        place = len(content) // 2
    else:
        (content,) = (data for name, data in members.items() if name.endswith("data.pkl"))
        place = content.find(b"K\5", content.find(b"global_step")) + 1  # K is pickle's small number

    raw[raw.index(content) + place] ^= 4
    path.write_bytes(raw)


DAMAGES = {
    "a bit of a tensor": lambda path: flip(path, in_tensor=True),
    "a bit of the step": lambda path: flip(path, in_tensor=False),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
}

# After five steps last is of step 5 and best of step 4; there is no previous.
RARE = ("trainer.val_every_steps=4", "callbacks.checkpoints.every_steps=5")


@pytest.mark.parametrize(
    ("often", "used"), [(EACH, "previous.ckpt, step 4 of 7"), (RARE, "best.ckpt, step 4 of 7")]
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_last_is_named_and_the_newest_good_file_used(
    straight, interrupted, resume, damage, often, used
):
    reference = straight(*often)
    interrupted(*often)
    DAMAGES[damage](newest() / "checkpoints" / "last.ckpt")
    result = resume()

    assert result.code == 0
    assert re.search(r"^warning  \S*/checkpoints/last\.ckpt is ", result.out, re.M)
    assert f"/checkpoints/{used}" in result.out
    assert_same(newest(), reference)


def test_when_all_are_damaged_nothing_is_written(interrupted, resume):
    interrupted(*EACH)
    folder = newest() / "checkpoints"
    DAMAGES["a bit of a tensor"](folder / "last.ckpt")
    DAMAGES["truncated"](folder / "previous.ckpt")
    DAMAGES["empty"](folder / "best.ckpt")
    before = snapshot(newest())

    said = ("no checkpoint to resume from: ", "last.ckpt", "previous.ckpt", "best.ckpt")
    assert_refused(resume(), *said)
    assert snapshot(newest()) == before


def keys(tree):
    """Every key of nested dicts, lists and tuples."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in entries:
        yield str(key)
        if isinstance(value, dict | list | tuple):
            yield from keys(value)


def test_no_file_of_a_run_holds_random_state(straight):
    folder = straight()
    found = {*keys(config_of(folder)), *curves(folder)}
    found |= set(EventAccumulator(str(folder)).Reload().Tags()["scalars"])
    for name in ("last", "previous", "best"):
        found |= set(keys(last(folder, name)))

    assert {"optimizer_states", "exp_avg", "seed", "train/loss"} <= found
    assert [key for key in found if re.search("rng|random", key, re.I)] == []


def test_a_run_of_before_versions_were_written_is_refused_in_one_line(complete, resume):
    complete()
    path = newest() / "config.yaml"
    path.write_text("".join(line for line in path.open() if not line.startswith("version:")))
    before = snapshot(newest())

    said = ("was begun by gptmini 0.1.0, which ", " cannot go on with; install gptmini 0.1.0")
    assert_refused(resume(), *said)
    assert snapshot(newest()) == before


def test_files_name_the_version_that_wrote_them(complete):
    complete()
    assert last(newest())["gptmini"]["version"] == gptmini.__version__
    assert config_of(newest())["version"] == gptmini.__version__


def test_the_optimizers_state_is_stored_by_the_names_of_the_weights(complete):
    complete()
    checkpoint = last(newest())
    (optimizer,) = checkpoint["optimizer_states"]

    assert set(optimizer["state"]) == set(checkpoint["state_dict"])
    for name, moments in optimizer["state"].items():
        shapes = {key: tuple(tensor.shape) for key, tensor in moments.items() if key != "step"}
        assert set(shapes.values()) == {tuple(checkpoint["state_dict"][name].shape)}, name
