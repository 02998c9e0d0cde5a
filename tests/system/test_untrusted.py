"""Files from other people: no code in them runs, and no pipe or device is read."""

import json
import os
import pickle
import resource
import shutil
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from gptmini.system.errors import UserError
from gptmini.system.untrusted import (
    check_plain_folder,
    read_json,
    read_pickle,
    read_text,
    read_yaml,
)
from gptmini.system.untrusted_tensors import read_safetensors, read_tensors

TENSORS = {"weight": torch.arange(15.0).view(3, 5), "counts": torch.tensor([4, 9])}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("checked", [False, True])
def test_tensors_and_plain_values_are_read_as_torch_saved_them(path, mapped, checked):
    plain = {"step": 7, "names": ["a", ("b", None)], "moments": OrderedDict(x=1.5)}
    other_views = {"turned": TENSORS["weight"].T, "again": TENSORS["weight"]}
    torch.save(plain | TENSORS | other_views, path)

    read = read_tensors(path, mapped=mapped, checked=checked)
    assert {name: read[name] for name in plain} == plain
    for name, tensor in (TENSORS | other_views).items():
        assert torch.equal(read[name], tensor)


class Payload:
    """Unpickling a Payload creates a file."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_pickled_code_is_refused_and_leaves_no_trace(path, tmp_path):
    trace = tmp_path / "trace"
    payload = Payload(trace)
    pickle.loads(pickle.dumps(payload))
    assert trace.exists()  # the payload works where nothing refuses it
    trace.unlink()

    torch.save({"model": payload}, path)
    with pytest.raises(UserError, match="only tensors and plain values"):
        read_tensors(path)

    # A file in torch's layout, written with zipfile. Its pickle is the payload alone.
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(payload, 2))
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/byteorder", b"little")
    with pytest.raises(UserError, match="only tensors and plain values"):
        read_tensors(path)

    # The same payload in torch's older format, and as a plain pickle.
    torch.save({"model": payload}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(UserError, match="is not a checkpoint"):
        read_tensors(path)
    path.write_bytes(pickle.dumps(payload))
    with pytest.raises(UserError, match="is not a checkpoint"):
        read_tensors(path)
    with pytest.raises(pickle.UnpicklingError, match="only plain values, got "):
        read_pickle(path)
    assert not trace.exists()

    values = {"itos": {0: "a", 1: "\u00e9"}, "more": [1.5, (None, b"x"), {True}]}
    path.write_bytes(pickle.dumps(values))
    assert read_pickle(path) == values


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(3, 5),
        torch.zeros(9).as_strided((5, 5), (1, 1)),
        torch.zeros(3, 5, device="meta"),
        torch.eye(3).to_sparse(),
        torch._nested_view_from_buffer(
            torch.zeros(5), torch.tensor([[2], [3]]), torch.ones(2, 1).long(), torch.tensor([0, 2])
        ),
    ],
    ids=["one number repeated", "rows that overlap", "no numbers", "sparse", "nested"],
)
@pytest.mark.parametrize("mapped", [False, True])
def test_a_tensor_whose_bytes_are_not_all_in_the_file_is_refused(path, tensor, mapped):
    torch.save({"state": [{"deep": tensor}]}, path)
    with pytest.raises(UserError, match=r"only dense tensors"):
        read_tensors(path, mapped=mapped)


def many_times(value, times, depth):
    """Nest lists: each level repeats the level below. Pickles store references, so the pickle stays small."""
    for _ in range(depth):
        value = [value] * times
    return value


SHARED = torch.zeros(1000)


@pytest.mark.parametrize(
    "values",
    [many_times("x" * 1000, 1000, 1), many_times("x", 9, 30), dict.fromkeys("abcdefghij", SHARED)],
)
def test_values_named_many_times_are_refused_before_they_take_memory(path, values):
    torch.save({"embedding": SHARED, "unembedding": SHARED}, path)  # a tied weight has two names
    assert set(read_tensors(path)) == {"embedding", "unembedding"}
    torch.save({"ranks": values}, path)
    assert path.stat().st_size < 20_000
    with pytest.raises(UserError, match=r"the same values .* [\d,]+ bytes"):
        read_tensors(path)


@pytest.mark.parametrize(
    ("compression", "attributes"), [(zipfile.ZIP_DEFLATED, 0), (zipfile.ZIP_STORED, 0x10)]
)
def test_an_entry_that_torch_does_not_write_is_refused(path, compression, attributes):
    torch.save(TENSORS, path)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = compression
            info.external_attr = attributes
            archive.writestr(info, content)
    with pytest.raises(UserError, match="torch does not write"):
        read_tensors(path)


LONG = (2**28).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x80\x02Nr" + LONG + b".", "memo index 268435456"),  # Python allocates 4 GB for it
        (b"Np268435456\n.", "memo index 268435456"),
        (b"\x80\x05\x96" + LONG + bytes(4) + b"abc.", "268435456 bytes"),
    ],
    ids=["a binary memo", "a memo in digits", "bytes"],
)
def test_a_pickle_that_claims_a_large_number_takes_no_memory(path, content, said):
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=said):
        read_pickle(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB


@pytest.mark.parametrize(
    ("offsets", "shape"),
    [
        ([0, 8], [1 << 40]),  # more numbers than bytes
        ([0, 1 << 40], [1 << 38]),  # more bytes than the file has
        ([0, 4], [1]),  # fewer
        ([0, 8], ["\n"]),  # the line break must not reach the message
    ],
)
def test_safetensors_whose_header_does_not_fit_the_file_are_refused(path, offsets, shape):
    twice = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in "ab"}
    for tensors in ({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}, twice):
        header = json.dumps(tensors).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        with pytest.raises(UserError, match=r"\A.*file is not a complete safetensors .*\(.*\)\Z"):
            read_safetensors(path)


READERS = [read_tensors, read_safetensors, read_text, read_json, read_yaml, read_pickle]


@pytest.mark.parametrize("read", READERS)
def test_nobody_waits_for_a_pipe_or_a_device(path, read):
    os.mkfifo(path)
    for place in (path, Path("/dev/zero")):
        with pytest.raises(UserError, match=rf"^{place} is not a regular file$"):
            read(place)


@pytest.mark.parametrize(
    ("read", "most"), [(read_text, 2**26), (read_json, 2**26), (read_yaml, 2**20)]
)
def test_a_file_that_is_too_large_is_not_read(path, read, most):
    path.touch()
    os.truncate(path, most + 1)  # sparse: uses no disk space
    with pytest.raises(UserError, match=rf"must have at most {most:,} bytes, got {most + 1:,}"):
        read(path)


def test_text_is_read_as_python_reads_it_and_must_be_utf_8(path):
    path.write_bytes("a\r\nb\rn\u00e9\n".encode())
    assert read_text(path) == path.read_text(encoding="utf-8") == "a\nb\nn\u00e9\n"
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"file is not UTF-8 text \("):
        read_text(path)


def test_json_and_yaml_are_read_if_they_hold_plain_keys_and_values(path):
    values = {"a.b": [1, None, "${x}"], "c": {"d": 1.5, "e": True}}
    path.write_text(json.dumps(values))
    assert read_json(path) == read_yaml(path) == values
    path.write_text("")
    assert read_yaml(path) == {}

    for text in ("{", "[" * 10**6, "[1]", "\xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(
            UserError, match=r"file (is not JSON \(.+\)|must .* JSON object, got .+)$"
        ):
            read_json(path)


LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20))]
)
NO_PLAIN_YAML = {
    "a billion laughs": (LAUGHS, "aliases"),
    "a merged mapping": ("a: &a {b: 1}\nc:\n  <<: *a", "aliases"),
    "Python": ("a: !!python/object/apply:os.mkdir [ran]", "could not determine a constructor"),
    "pairs": ("a: !!pairs [_target_: os.mkdir]", "tuple"),
    "a date": ("a: 2026-01-01", "date"),
    "a text": ("text", "no keys"),
    "cut short": ("a: [1,", "."),
    "a long number": (f"a: {'9' * 5000}", "."),
    # The limit is gptmini's own, or that of libyaml.
    "deep": (f"a: {'[' * 10**5}{']' * 10**5}", r"nested deeper than 100|maximum nesting depth"),
}


@pytest.mark.parametrize(("text", "reason"), NO_PLAIN_YAML.values(), ids=NO_PLAIN_YAML)
def test_yaml_that_is_not_plain_is_refused_in_one_line(tmp_path, monkeypatch, path, text, reason):
    monkeypatch.chdir(tmp_path)
    path.write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = rf"^{path} must be YAML with keys and plain values \(.*({reason}).*\)\Z"
    with pytest.raises(UserError, match=said):
        read_yaml(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("wandb", "link"),
        ("checkpoints/.x/.tmp", "link"),
        ("other/wandb/x", "link"),
        ("checkpoints/last.ckpt", "pipe"),
        ("wandb/a.log", "pipe"),  # links are allowed here
    ],
)
def test_a_folder_with_a_link_or_a_pipe_is_refused(tmp_path, place, kind):
    run = tmp_path / "run"
    (run / "wandb" / "run-1").mkdir(parents=True)
    # Weights & Biases may link.
    (run / "wandb" / "latest-run").symlink_to("run-1")
    (run / "wandb" / "run-1" / "debug.log").symlink_to("/tmp")
    if place == "wandb":
        shutil.rmtree(run / place)
    check_plain_folder(run)
    odd = run / place
    odd.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to(tmp_path)
    with pytest.raises(UserError, match=f"{place} must be a regular file or a folder"):
        check_plain_folder(run)
