"""A checkpoint that is damaged, foreign or at odds with itself is refused before it is read."""

import struct
import zipfile

import pytest
import torch

from checkpoint.checkpoints import LEARNED, ROTARY, make, refusal, small
from gptmini.checkpoint.file import build_model, read_checkpoint, write_checkpoint
from gptmini.tokenizer import CharTokenizer


@pytest.fixture
def path(tmp_path):
    return tmp_path / "best.ckpt"


def test_a_truncated_file_is_refused_wherever_it_ends(path):
    write_checkpoint(small(), path)
    whole = path.read_bytes()
    for length in [1, 3, 4, *range(5, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "is not a checkpoint, or is cut short or damaged" in refusal(path), length


def test_every_flipped_byte_of_the_content_is_refused(path):
    write_checkpoint(small(), path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]

    n_flips = 0
    for info, content in members:
        # A member's bytes come after its local header, its name and an extra field; the header says how long they are.
        name = info.filename
        lengths = struct.unpack_from("<HH", whole, info.header_offset + 26)
        start = info.header_offset + 30 + sum(lengths)
        for i in range(start, start + len(content)):
            path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x40]) + whole[i + 1 :])
            assert f"is damaged: the CRC-32 of {name} does not match" in refusal(path), i
            n_flips += 1

    assert n_flips > 7 * 4  # the tensor's own bytes are among them


def test_a_flipped_bit_of_the_directory_is_refused_or_changes_nothing(path):
    write_checkpoint(small(), path)
    whole = path.read_bytes()
    written = small()
    with zipfile.ZipFile(path) as archive:
        directory = archive.start_dir

    messages = []
    for i in range(directory, len(whole)):
        for bit in (1, 16, 128):
            path.write_bytes(whole[:i] + bytes([whole[i] ^ bit]) + whole[i + 1 :])
            try:
                read = read_checkpoint(path)
            except ValueError as caught:
                messages.append(str(caught))
                continue

            weight = read["state_dict"]["model.w"]
            assert torch.equal(weight, written["state_dict"]["model.w"]), (i, bit)
            assert read["gptmini"] == written["gptmini"], (i, bit)

    assert all(str(path) in message for message in messages)  # not a codec's own words


@pytest.mark.parametrize(
    "content", [b"", b"To be, or not to be\n" * 99, b"PK\x03\x04", b"\x80\x02}q\x00."]
)
def test_what_is_no_zip_file_is_refused(path, content):
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path} is not a checkpoint, or is cut short or damaged (")


@pytest.mark.parametrize(
    "weight",
    [torch.zeros(64, 24).int(), torch.zeros(64, 24).half(), 3],
)
def test_weights_that_are_not_floats_of_one_dtype_are_refused(weight):
    checkpoint = make(LEARNED)
    checkpoint["state_dict"]["model.embedding.weight"] = weight
    checkpoint["state_dict"][3] = torch.zeros(2)
    with pytest.raises(ValueError, match="must be"):
        build_model(checkpoint)


@pytest.mark.parametrize("form", [0, 2, None, True])
def test_another_format_is_refused(path, form):
    checkpoint = make()
    checkpoint["gptmini"]["format"] = form
    write_checkpoint(checkpoint, path)
    expected = f"{path} has checkpoint format {form}, this version reads 1; use the version of gptmini that wrote it"
    assert refusal(path) == expected


@pytest.mark.parametrize(
    "foreign", [{"w": torch.zeros(3)}, [1], {"gptmini": {}, "state_dict": 5}, {"state_dict": {}}]
)
def test_tensors_of_something_else_are_refused(path, foreign):
    torch.save(foreign, path)
    expected = f"{path} is not a gptmini checkpoint: it lacks the gptmini header or the weights"
    assert refusal(path) == expected


@pytest.mark.parametrize(
    ("config", "claims", "message"),
    [
        (
            LEARNED,
            {"d_model": 48},
            "do not fit its config: .* embedding .*claimed, the embedding is",
        ),
        (LEARNED, {"n_layers": 1}, "do not fit its config: Unexpected key.*blocks.1"),
        (LEARNED, {"n_layers": 3}, "do not fit its config: Missing key.*blocks.2"),
        (LEARNED, {"tie_embeddings": False}, "do not fit its config: Missing key.*unembedding"),
        (ROTARY, {"tie_embeddings": True}, "do not fit its config: Unexpected key.*unembedding"),
        (
            LEARNED,
            {"n_heads": 7},
            "d_model must be a multiple of n_heads, got d_model=24 and n_heads=7",
        ),
        (LEARNED, {"d_modle": 24}, "config must have the fields of GPTConfig: .*d_modle"),
        # Sizes that no machine has room for: refused before any memory is asked for.
        (
            LEARNED,
            {"vocab_size": 2**32},
            "do not fit its config: .* embedding .*claimed, the embedding is",
        ),
        (
            ROTARY,
            {"vocab_size": 2**32},
            "do not fit its config: .* embedding .*claimed, the embedding is",
        ),
        (LEARNED, {"d_ff": 2**32}, "do not fit its config: size mismatch for blocks.0.mlp"),
        (LEARNED, {"n_layers": 2**32}, "n_layers: .* less than or equal to 10000"),
        (LEARNED, {"n_layers": 9_999}, "do not fit its config: 9999 layers"),
        (
            LEARNED,
            {"context_length": 2**20},
            "do not fit its config: size mismatch for position_embedding",
        ),
        (
            ROTARY,
            {"context_length": 2**32},
            "must be at most 67108864 when position=rotary, got context_length=4294967296",
        ),
        (
            ROTARY,
            {"d_model": 2**20, "n_heads": 1, "context_length": 2**20},
            "must be at most 67108864",
        ),
        (ROTARY, {"d_model": 2**32, "n_heads": 1, "vocab_size": 2**32}, "must be at most 67108864"),
        (LEARNED, {"d_model": 2**32, "n_heads": 1, "vocab_size": 2**32}, "do not fit its config"),
    ],
)
def test_config_and_weights_at_odds_are_refused(config, claims, message):
    with pytest.raises(ValueError, match=message):
        build_model(make(config, **claims))


def test_a_tokenizer_of_another_size_is_refused(path):
    checkpoint = make()
    checkpoint["gptmini"]["tokenizer"] = CharTokenizer("abc", end_of_text=True).to_dict()
    write_checkpoint(checkpoint, path)
    assert refusal(path) == f"{path}: the tokenizer's 4 ids must equal the model's vocab_size=11"

    del checkpoint["gptmini"]["tokenizer"]
    write_checkpoint(checkpoint, path)
    assert "a tokenizer must have kind and its fields" in refusal(path)
