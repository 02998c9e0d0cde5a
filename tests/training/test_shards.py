"""A checkpoint of shards is written by any number of processes, and read by any other number, as one file would be."""

import json
import shutil
import stat
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import gptmini
from checkpoint.checkpoints import make, small
from forked import in_processes
from gptmini.checkpoint.file import read_checkpoint, read_header, step_of, write_checkpoint
from gptmini.checkpoint.training_state import TrainingState
from gptmini.model import shard_writing
from gptmini.model.shard_writing import write_shards
from gptmini.model.shards import StoredTensor, read_stored
from gptmini.runs import find_training_state
from gptmini.training import RunCheckpoints
from gptmini.user_error import UserError
from training.test_strategies import continued, stopping_after, trained


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Let every run of this file write shards."""
    monkeypatch.setattr(
        "training.test_strategies.RunCheckpoints", partial(RunCheckpoints, shards_above=0)
    )


def folders(path):
    """The folders of shards beside a checkpoint."""
    return sorted(path.parent.glob("*.shards"))


def moments_of(checkpoint):
    """The optimizer's moments in a checkpoint, also those that are still in their shards."""
    (state,) = checkpoint["optimizer_states"]
    moments = {}
    for name, tensors in state["state"].items():
        moments[name] = dict(tensors)
        for moment, tensor in tensors.items():
            if isinstance(tensor, StoredTensor):
                moments[name][moment] = torch.zeros(tensor.shape, dtype=tensor.dtype)
                read_stored([(tensor, moments[name][moment])])
    return moments


def same(left, right, atol=0.0):
    """Whether the checkpoints hold the same weights and moments."""
    torch.testing.assert_close(left["state_dict"], right["state_dict"], atol=atol, rtol=0)
    torch.testing.assert_close(moments_of(left), moments_of(right), atol=atol, rtol=0)


def test_shards_of_two_processes_are_read_by_one_and_by_four(train, tmp_path, monkeypatch):
    options = {"optimizer": "muon", "dtype": torch.float64, "max_steps": 6}
    with monkeypatch.context() as patch:
        patch.setattr("training.test_strategies.RunCheckpoints", RunCheckpoints)
        _, _, expected = trained(train, 1, folder=tmp_path / "alone", **options)
    of_one = read_checkpoint(tmp_path / "alone" / "checkpoints" / "last.ckpt")

    moved = tmp_path / "moved"
    path = moved / "checkpoints" / "last.ckpt"
    two = partial(
        trained, train, 2, folder=moved, strategy="fsdp2", watch=stopping_after(2), **options
    )
    in_processes(2, two, folder=tmp_path)

    # Each process has written its share, of which safetensors knows the whole.
    (folder,) = {path.with_name(json.loads(path.read_bytes())["shards"])}
    files = sorted(folder.iterdir())
    assert len(files) == 2
    name = "state_dict.model.embedding.weight"
    rows = 0
    for file in files:
        with safe_open(file, framework="pt") as opened:
            rows += opened.get_slice(name).get_shape()[0]
    assert rows == len(read_checkpoint(path)["state_dict"]["model.embedding.weight"])

    # Four processes go on, then one does.
    (tmp_path / "four").mkdir()
    four = partial(
        continued,
        train,
        4,
        path,
        folder=moved,
        strategy="fsdp2",
        watch=stopping_after(4),
        **options,
    )
    in_processes(4, four, folder=tmp_path / "four")
    assert read_checkpoint(path)["global_step"] == 4
    weights = continued(train, 1, path, folder=moved, **options)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], atol=1e-11, rtol=0)
    same(read_checkpoint(path), of_one, atol=1e-11)

    # best.ckpt, last.ckpt and previous.ckpt name all the folders that are left.
    named = {json.loads(file.read_bytes())["shards"] for file in path.parent.glob("*.ckpt")}
    assert {folder.name for folder in folders(path)} == named


def test_one_process_writes_the_same_numbers_as_shards(train, tmp_path, monkeypatch):
    options = {"optimizer": "adamw", "max_steps": 4}
    trained(train, 1, folder=tmp_path / "shards", **options)
    monkeypatch.setattr("training.test_strategies.RunCheckpoints", RunCheckpoints)
    trained(train, 1, folder=tmp_path / "file", **options)
    for name in ("last", "best", "previous"):
        divided = tmp_path / "shards" / "checkpoints" / f"{name}.ckpt"
        whole = tmp_path / "file" / "checkpoints" / f"{name}.ckpt"
        same(read_checkpoint(divided), read_checkpoint(whole))
        assert read_header(divided) == read_header(whole)
        assert step_of(divided) == step_of(whole)

    state, notes = find_training_state(tmp_path / "shards")
    assert notes == []
    assert state.step == 4
    ours, _ = gptmini.load(tmp_path / "shards" / "checkpoints" / "last.ckpt")
    theirs, _ = gptmini.load(tmp_path / "file" / "checkpoints" / "last.ckpt")
    for name, weight in ours.state_dict().items():
        assert weight.equal(theirs.state_dict()[name])


@pytest.fixture
def path(tmp_path):
    """A checkpoint of shards of a random model."""
    path = tmp_path / "last.ckpt"
    write_shards(make() | {"global_step": 3, "optimizer_states": [{"state": {}}]}, path)
    return path


def test_every_flipped_byte_is_refused(path):
    (shard,) = folders(path)[0].iterdir()
    whole = shard.read_bytes()
    for at in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        shard.write_bytes(damaged)
        with pytest.raises(UserError, match="is damaged: the CRC-32 of"):
            read_checkpoint(path)
        assert step_of(path) == float("inf")
    shard.write_bytes(whole)
    assert step_of(path) == 3


def test_moments_stay_in_their_shards_until_they_are_needed(train, tmp_path):
    trained(train, 1, folder=tmp_path, optimizer="adamw", max_steps=2)
    path = tmp_path / "checkpoints" / "last.ckpt"
    checkpoint = read_checkpoint(path)
    (state,) = checkpoint["optimizer_states"]
    for name, moments in state["state"].items():
        assert moments["step"].item() == 2
        for moment in ("exp_avg", "exp_avg_sq"):
            assert isinstance(moments[moment], StoredTensor)
            assert moments[moment].shape == checkpoint["state_dict"][name].shape
            assert moments[moment].dtype == checkpoint["state_dict"][name].dtype

    # What is gone when it is needed is told by the name of its folder.
    (folder,) = {moments["exp_avg"].folder for moments in state["state"].values()}
    for shard in folder.iterdir():
        with safe_open(shard, framework="pt") as opened:
            names = [name for name in opened.keys() if name.startswith("state_dict")]  # noqa: SIM118 - no mapping
            kept = {name: opened.get_tensor(name) for name in names}
        save_file(kept, shard)
    with pytest.raises(UserError, match=rf"{folder.name} is damaged: it does not hold the tensors"):
        moments_of(checkpoint)


def test_checksums_that_another_process_has_compared_are_not_compared_again(path, tmp_path):
    contents = json.loads(path.read_text())
    contents["checksums"] = dict.fromkeys(contents["checksums"], 0)
    path.write_text(json.dumps(contents))
    with pytest.raises(UserError, match="is damaged: the CRC-32 of"):
        read_checkpoint(path)
    assert read_checkpoint(path, is_checked=True)["global_step"] == 3

    # The same for a checkpoint in one file: a flipped bit of a weight is read as it is.
    whole = tmp_path / "whole.ckpt"
    write_checkpoint(make(), whole)
    content = bytearray(whole.read_bytes())
    content[len(content) // 2] ^= 1
    whole.write_bytes(content)
    with pytest.raises(UserError, match="is damaged: the CRC-32 of"):
        read_checkpoint(whole)
    assert (
        read_checkpoint(whole, is_checked=True)["state_dict"].keys() == make()["state_dict"].keys()
    )


def test_what_is_missing_or_strange_is_told(path):
    folder = folders(path)[0]
    (shard,) = folder.iterdir()

    (folder / "more.safetensors").write_bytes(shard.read_bytes())
    with pytest.raises(UserError, match=r"holds more\.safetensors, which is not its own"):
        read_checkpoint(path)
    (folder / "more.safetensors").unlink()

    moved = shard.rename(path.with_name("elsewhere"))
    with pytest.raises(UserError, match="is missing"):
        read_checkpoint(path)
    moved.rename(shard)

    shutil.rmtree(folder)
    with pytest.raises(UserError, match="lacks the folder step-3-"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"shards": "../step"}, "it names no folder of shards"),
        ({"shards": 3}, "it names no folder of shards"),
        ({"checksums": []}, "it names no folder of shards"),
        ({"state_dict": {"w": {"$tensor": "nowhere"}}}, "does not hold the tensors"),
        ({"state_dict": {"w": {"$tensor": [1]}}}, "weights"),
        ({"state_dict": 3}, "is not a gptmini checkpoint"),
        ({"gptmini": {"format": 9}}, "has checkpoint format 9"),
    ],
)
def test_a_file_that_claims_junk_is_refused(path, claim, message):
    path.write_text(json.dumps(json.loads(path.read_text()) | claim))
    with pytest.raises(UserError, match=message):
        gptmini.load(path)


def test_a_file_that_is_cut_anywhere_is_refused(path):
    whole = path.read_bytes()
    for length in [1, *range(2, len(whole), 61), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="is damaged: it is no JSON"):
            read_checkpoint(path)


def test_a_full_disk_leaves_the_old_checkpoint(path, monkeypatch):
    before = path.read_bytes()

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        "torch.distributed.checkpoint.hf_storage.FileSystemWriter._write_data", full
    )
    with pytest.raises(OSError, match="No space left on device"):
        write_shards(make() | {"global_step": 4}, path)
    assert path.read_bytes() == before
    assert len(folders(path)) == 1
    assert not list(path.parent.glob(".*"))
    monkeypatch.undo()

    # The same where the small file finds no room.
    monkeypatch.setattr(shard_writing, "replacing", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_shards(make() | {"global_step": 4}, path)
    assert path.read_bytes() == before
    assert read_checkpoint(path)["global_step"] == 3


def test_folders_that_nothing_names_are_removed(path):
    write_shards(make() | {"global_step": 4}, path, previous=path.with_name("previous.ckpt"))
    assert len(folders(path)) == 2
    write_shards(make() | {"global_step": 5}, path, previous=path.with_name("previous.ckpt"))
    assert [folder.name.partition("-")[2][0] for folder in folders(path)] == ["4", "5"]
    assert read_checkpoint(path.with_name("previous.ckpt"))["global_step"] == 4

    # A checkpoint in one file beside them changes nothing.
    write_checkpoint(small(), path.with_name("best.ckpt"))
    write_shards(make() | {"global_step": 6}, path)
    assert len(folders(path)) == 2


def test_a_damaged_file_that_was_set_aside_does_not_keep_folders(path):
    path.with_name("set-aside-last-inf.ckpt").write_text("{")
    write_shards(make() | {"global_step": 4}, path)
    assert len(folders(path)) == 1

    # What another damaged file has named is not known, so that every folder stays.
    path.with_name("best.ckpt").write_text("{")
    write_shards(make() | {"global_step": 5}, path)
    assert len(folders(path)) == 2


def test_names_that_collide_and_keys_that_are_no_texts_are_refused(tmp_path):
    path = tmp_path / "last.ckpt"
    twice = {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}
    for callbacks in (twice, {3: torch.ones(1)}):
        with pytest.raises(UserError, match=r"two tensors of the checkpoint|needs texts for keys"):
            write_shards(make() | {"global_step": 4, "callbacks": callbacks}, path)


def test_tensors_in_the_state_of_callbacks_are_kept(tmp_path):
    path = tmp_path / "last.ckpt"
    kept = {"Mine": {"mean": torch.arange(3.0), "names": ["a", {"b": torch.tensor(7)}], "n": None}}
    before = torch.get_rng_state()
    write_shards(make() | {"global_step": 1, "callbacks": kept}, path)
    assert torch.get_rng_state().equal(before)  # a save draws no random numbers of training
    read = read_checkpoint(path)["callbacks"]
    assert read["Mine"]["mean"].equal(torch.arange(3.0))
    assert read["Mine"]["names"][1]["b"].item() == 7
    assert read["Mine"]["n"] is None


def test_the_small_file_can_be_read_by_its_owner_like_any_other(path):
    modes = {stat.S_IMODE(file.stat().st_mode) & 0o600 for file in Path(path.parent).iterdir()}
    assert modes == {0o600}


def test_a_training_state_is_parsed_from_shards(train, tmp_path):
    trained(train, 1, folder=tmp_path, optimizer="muon", max_steps=2)
    path = tmp_path / "checkpoints" / "last.ckpt"
    assert TrainingState.parse(read_checkpoint(path), path).step == 2
