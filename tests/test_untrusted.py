"""Files of somebody else, made by other programs: nothing in them runs, and none takes far more than its size."""

import json
import os
import pickle
import resource
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from gptmini.untrusted import (
    check_plain_folder,
    check_targets,
    known_nodes,
    nodes,
    read_json,
    read_pickle,
    read_tensors,
    read_yaml,
    targets,
)
from gptmini.user_error import UserError

CONFIGS = Path(__file__).parent.parent / "configs"
PATH = Path("config.yaml")
TENSORS = {"weight": torch.arange(15.0).view(3, 5), "counts": torch.tensor([4, 9])}


class Payload:
    """Unpickling this leaves a file."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("checked", [False, True])
def test_tensors_and_plain_values_are_read_as_torch_saved_them(path, mapped, checked):
    plain = {"step": 7, "names": ["a", ("b", None)], "moments": OrderedDict(x=1.5)}
    torch.save(plain | TENSORS | {"turned": TENSORS["weight"].T}, path)

    read = read_tensors(path, mapped=mapped, checked=checked)
    assert {name: read[name] for name in plain} == plain
    for name, tensor in TENSORS.items():
        assert torch.equal(read[name], tensor)
    assert torch.equal(read["turned"], TENSORS["weight"].T)


def test_one_tensor_under_two_names_is_read(path):
    torch.save({"embedding": TENSORS["weight"], "head": TENSORS["weight"]}, path)
    read = read_tensors(path)
    assert torch.equal(read["embedding"], read["head"])


def test_pickled_code_is_refused_and_leaves_no_trace(path, tmp_path):
    trace = tmp_path / "trace"
    payload = Payload(trace)
    pickle.loads(pickle.dumps(payload))
    assert trace.exists()  # the payload works where nothing refuses it
    trace.unlink()

    torch.save({"model": payload}, path)
    with pytest.raises(UserError, match="only tensors and plain data; refused without running it"):
        read_tensors(path)

    # A file of torch's layout, made by zipfile, with the bare payload as its pickle.
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(payload, 2))
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/byteorder", b"little")
    with pytest.raises(UserError, match="refused without running it"):
        read_tensors(path)

    # torch's older format, and Python's own.
    torch.save({"model": payload}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(UserError, match="is not a checkpoint"):
        read_tensors(path)
    path.write_bytes(pickle.dumps(payload))
    with pytest.raises(UserError, match="is not a checkpoint"):
        read_tensors(path)
    with pytest.raises(pickle.UnpicklingError, match="must hold plain values, and asks for "):
        read_pickle(path)
    assert not trace.exists()


def test_a_pickle_of_plain_values_is_read(path):
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
    with pytest.raises(
        UserError, match=r"file must hold dense tensors, with every number of each$"
    ):
        read_tensors(path, mapped=mapped)


def many_times(value, times, depth):
    """A list of so many times a value, of so many times that list, and so on: small as a pickle, which names them."""
    for _ in range(depth):
        value = [value] * times
    return value


def endless():
    """A list that holds itself."""
    own = []
    own.append(own)
    return own


@pytest.mark.parametrize(
    "values",
    [many_times("x" * 1000, 1000, 1), many_times("x", 9, 30), endless()],
    ids=["one long text", "lists of lists", "a list of itself"],
)
def test_values_named_many_times_are_refused_before_they_take_memory(path, values):
    torch.save({"ranks": values}, path)
    assert path.stat().st_size < 20_000
    with pytest.raises(UserError, match=r"file must not repeat values beyond its own [\d,]+ bytes"):
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

    with pytest.raises(
        UserError, match=r"is not a checkpoint: torch does not write an entry as its "
    ):
        read_tensors(path)


READERS = [read_tensors, read_json, read_yaml, read_pickle]


@pytest.mark.parametrize("read", READERS)
def test_nobody_waits_for_a_pipe_or_a_device(path, read):
    os.mkfifo(path)
    with pytest.raises(UserError, match=r"file must be a regular file, and is not$"):
        read(path)
    with pytest.raises(UserError, match=r"^/dev/zero must be a regular file"):
        read(Path("/dev/zero"))


@pytest.mark.parametrize(("read", "most"), [(read_json, 2**26), (read_yaml, 2**20)])
def test_a_file_that_is_too_large_is_not_read(path, read, most):
    path.touch()
    os.truncate(path, most + 1)  # takes no room on the disk
    with pytest.raises(UserError, match=rf"must have at most {most:,} bytes, got {most + 1:,}"):
        read(path)


@pytest.mark.parametrize("text", ["{", "[" * 10**6, "", "\xff"])
def test_what_is_no_json_is_refused(path, text):
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"file must be JSON \(.+\)$"):
        read_json(path)


def test_json_is_read_if_it_is_an_object(path):
    values = {"a.b": [1, None, "${x}"], "c": {"d": 1.5}}
    path.write_text(json.dumps(values))
    assert read_json(path) == values
    path.write_text("[1]")
    with pytest.raises(UserError, match="file must hold a JSON object, got list"):
        read_json(path)


LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20))]
)
NO_PLAIN_YAML = {
    "a billion laughs": (LAUGHS, "it has aliases"),
    "a list of itself": ("a: &a [*a]", "it has aliases"),
    "a merged mapping": ("a: &a {b: 1}\nc:\n  <<: *a", "it has aliases"),
    "Python": ("a: !!python/object/apply:os.mkdir [ran]", "could not determine a constructor"),
    "pairs": ("a: !!pairs [_target_: os.mkdir]", "it holds a tuple"),
    "a set": ("a: !!set {b, c}", "it holds a set"),
    "a date": ("a: 2026-01-01", "it holds a date"),
    "no date": ("a: !!timestamp x", "."),
    "bytes": ("a: !!binary eA==", "it holds a bytes"),
    "a list": ("[1]", "it holds no keys"),
    "a text": ("text", "it holds no keys"),
    "two documents": ("a: 1\n---\nb: 2", "expected a single document"),
    "a list for a key": ("[a]: 1", "."),
    "cut short": ("a: [1,", "."),
    "a long number": (f"a: {'9' * 5000}", "."),
    "deep": (f"a: {'[' * 10**5}{']' * 10**5}", "it is nested deeper than 100"),
}


@pytest.mark.parametrize(("text", "reason"), NO_PLAIN_YAML.values(), ids=NO_PLAIN_YAML)
def test_yaml_that_is_not_plain_is_refused_in_one_line(tmp_path, monkeypatch, path, text, reason):
    monkeypatch.chdir(tmp_path)
    path.write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = rf"^{path} must be YAML of keys and plain values \(.*{reason}.*\)\Z"
    with pytest.raises(UserError, match=said):
        read_yaml(path)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB
    assert not Path("ran").exists()


def test_plain_yaml_is_read(path):
    path.write_text("a: {b: [1, 2.5, null, true], 0: '${x}'}\n")
    assert read_yaml(path) == {"a": {"b": [1, 2.5, None, True], 0: "${x}"}}
    path.write_text("")
    assert read_yaml(path) == {}


def test_targets_are_found_at_any_depth():
    tree = {
        "model": {"_target_": "a.B", "more": [{"x": {"_target_": "c"}}]},
        "callbacks": {"one": {"_target_": "a.B"}, "none": None},
        "odd": {"_target_": ["d"]},
    }
    assert targets(nodes(tree)) == {
        ("model", "a.B"),
        ("model.more.0.x", "c"),
        ("callbacks.one", "a.B"),
        ("odd", "['d']"),
    }


def test_the_targets_of_a_folder_are_those_of_its_groups_and_experiments(tmp_path):
    files = {
        "optimizer/lion.yaml": "_target_: my.Lion",
        "callbacks/stop.yaml": "stop: {_target_: my.Stop}",
        "experiment/mine.yaml": "logger: {one: {_target_: my.Logger}}\nx: &x 1\ny: *x",
        "root.yaml": "data: {_target_: my.Text, folder: '${data_dir}'}",
        "optimizer/notes.txt": "_target_: os.mkdir",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert targets(known_nodes(tmp_path)) == {
        ("optimizer", "my.Lion"),
        ("callbacks.stop", "my.Stop"),
        ("logger.one", "my.Logger"),
        ("data", "my.Text"),
    }

    (tmp_path / "callbacks" / "half.yaml").write_text("a: [")
    with pytest.raises(UserError, match=r"half\.yaml must be YAML"):
        targets(known_nodes(tmp_path))


KNOWN = {
    "optimizer": {"_target_": "gptmini.optim.AdamWSettings", "lr": 0.001},
    "callbacks": {"scalars": {"_target_": "gptmini.training.Scalars"}, "samples": None},
    "seed": 1,
}
DOWNLOAD = {"_target_": "gptmini.data.PublishedText", "url": "http://localhost:1/", "folder": "."}


def test_a_stored_configuration_of_known_parts_is_allowed():
    check_targets(KNOWN, targets(known_nodes(CONFIGS)), PATH)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer": {"_target_": "torch.hub.load"}}, "torch.hub.load for optimizer"),
        ({"optimizer": {"_target_": ["os.mkdir"]}}, r"\['os.mkdir'\] for optimizer"),
        (
            {"callbacks": {"more": {"_target_": "os.mkdir"}}},
            r"names os.mkdir for callbacks.more, which no configuration here does; if it is yours, "
            r"type \+callbacks.more=... or its --config-dir again$",
        ),
        (
            {"callbacks": {"scalars": {"_target_": "gptmini.training.Pictures"}}},
            "gptmini.training.Pictures for callbacks.scalars",
        ),
        (
            {"optimizer": KNOWN["optimizer"] | {"lr": [{"x": DOWNLOAD}]}},
            "gptmini.data.PublishedText for optimizer.lr.0.x",
        ),
        ({"callbacks": {"more": DOWNLOAD}}, "gptmini.data.PublishedText for callbacks.more"),
        ({"name": "a ${oc.env:HOME}"}, r"must hold plain values, got 'a \$\{oc.env:HOME\}'"),
        ({"seed": [{"x": "\\${now:%Y}"}]}, "must hold plain values"),
        ({"callbacks.x": {}}, "must have names without dots for keys, got 'callbacks.x'"),
        ({"callbacks": {"a": {"b.c": 1}}}, "must have names without dots for keys, got 'b.c'"),
    ],
)
def test_a_stored_configuration_that_computes_something_else_is_refused(changes, said):
    with pytest.raises(UserError, match=f"^config.yaml .*{said}"):
        check_targets(KNOWN | changes, targets(known_nodes(CONFIGS)), PATH)


def test_a_folder_of_files_and_folders_is_plain(tmp_path):
    (tmp_path / "checkpoints" / ".hidden").mkdir(parents=True)
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    # As Weights & Biases links: to its newest run, and to a log in the user's cache.
    logs = tmp_path / "wandb" / "run-1" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "wandb" / "latest-run").symlink_to("run-1")
    (logs / "debug-core.log").symlink_to("/tmp")
    check_plain_folder(tmp_path)


@pytest.mark.parametrize(
    "place", ["wandb", "train.log", "checkpoints/last.ckpt", "checkpoints/.x/.tmp", "other/wandb/x"]
)
@pytest.mark.parametrize("kind", ["link", "link to itself", "pipe"])
def test_a_folder_with_a_link_or_a_pipe_is_refused(tmp_path, place, kind):
    odd = tmp_path / "run" / place
    odd.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to(tmp_path if kind == "link" else odd.name)

    with pytest.raises(UserError, match=f"{place} must be a file or folder itself, and it is a"):
        check_plain_folder(tmp_path / "run")


def test_a_pipe_is_refused_even_where_a_logger_makes_links(tmp_path):
    (tmp_path / "wandb").mkdir()
    os.mkfifo(tmp_path / "wandb" / "debug.log")
    with pytest.raises(UserError, match=r"wandb/debug\.log must be a file or folder itself"):
        check_plain_folder(tmp_path)
