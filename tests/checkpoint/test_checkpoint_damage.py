"""Damaged, foreign and inconsistent checkpoints are refused before their data is read."""

import zipfile

import pytest
import torch

from checkpoint.checkpoints import make, refusal, small
from gptmini.checkpoint.file import build_model, read_checkpoint, write_checkpoint
from gptmini.loading import load
from gptmini.system.errors import UserError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "best.ckpt"


def test_a_truncated_file_is_refused_wherever_it_ends(path):
    write_checkpoint(small(), path)
    whole = path.read_bytes()
    for length in [0, 1, 4, *range(5, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "is not a checkpoint" in refusal(path), length


def test_a_flipped_bit_is_refused_or_changes_nothing(path):
    """Flipped bits of the content are always refused. Some bits of the ZIP directory only hold times and attributes."""
    write_checkpoint(small(), path)
    whole = path.read_bytes()
    expected = read_checkpoint(path)
    with zipfile.ZipFile(path) as archive:
        (info,) = (info for info in archive.infolist() if info.filename.endswith("data/0"))
        content = archive.read(info)
    start = whole.index(content)

    def flipped(i, bit):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ bit]) + whole[i + 1 :])

    for i in range(start, start + len(content)):
        flipped(i, 0x40)
        assert f"CRC-32 of {info.filename}" in refusal(path), i

    messages = []
    for i in range(0, len(whole), 7):
        flipped(i, 16)
        try:
            read = read_checkpoint(path)
        except UserError as caught:
            messages.append(str(caught))
            continue
        assert torch.equal(read["state_dict"]["model.w"], expected["state_dict"]["model.w"]), i
        assert read["gptmini"] == expected["gptmini"], i
    assert all(str(path) in message for message in messages)  # not a codec's own words


def test_a_damaged_header_is_refused_as_damage_when_the_model_is_loaded(path):
    write_checkpoint(make(), path)
    whole = path.read_bytes()
    start = whole.index(b"data.pkl")
    for i in range(start + 100, start + 600, 31):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x11]) + whole[i + 1 :])
        with pytest.raises(UserError, match=f"{path} is damaged.*CRC-32 of .*data.pkl"):
            load(path)


@pytest.mark.parametrize("changes", [{"format": 2, "version": "0.9.1"}, {"version": "0.2.0"}])
def test_a_checkpoint_of_another_version_is_refused_and_that_version_is_named(path, changes):
    checkpoint = make()
    checkpoint["gptmini"] |= changes
    write_checkpoint(checkpoint, path)
    assert f"written by gptmini {changes['version']}," in refusal(path)


@pytest.mark.parametrize("foreign", [{"w": torch.zeros(3)}, {"gptmini": {}, "state_dict": 5}])
def test_tensors_of_something_else_are_refused(path, foreign):
    torch.save(foreign, path)
    expected = f"{path} is not a gptmini checkpoint: the gptmini header or the weights are missing"
    assert refusal(path) == expected


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"d_model": 48}, "config: .*size mismatch for embedding"),
        ({"n_layers": 1}, "config: Unexpected key.*blocks.1"),
        ({"n_layers": 3}, "config: Missing key.*blocks.2"),
        ({"d_modle": 24}, "GPTConfig: .*d_modle"),
        # Sizes that no machine has room for: refused before any memory is asked for.
        ({"d_ff": 2**32}, "config: size mismatch for blocks.0.mlp"),
        ({"n_layers": 9_999}, "config: expected 9999 layers"),
    ],
)
def test_config_and_weights_at_odds_are_refused(claims, message):
    with pytest.raises(UserError, match=message):
        build_model(make(**claims))
