"""Whatever gptmini reads, broken: refused in one line of ours, or read as it was. No traceback, hang or code run."""

import copy
import hashlib
import io
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import traceback
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from functools import reduce
from operator import getitem
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import gptmini
from gptmini import tokenizer
from gptmini.checks import UserError
from gptmini.commands import errors, launching, train
from gptmini.data.store import TokenStore, prepare
from gptmini.model import GPTConfig, new_gpt
from gptmini.model.checkpoint import header, read_checkpoint, write_checkpoint
from gptmini.run_folder import find_training_state
from gptmini.training import RunCheckpoints, Stopping, build_trainer
from gptmini.training.stopping import Ending
from sizes import GPT2, MODERN

resource = pytest.importorskip("resource")  # of POSIX, as its alarm
ROOT = Path(__file__).parent.parent
PATIENCE = 10  # seconds in which anything so small is read, on a busy machine
ROOM = 2**30 // (1 if sys.platform == "darwin" else 1024)  # a gigabyte, in getrusage's unit
RAN = "ran"  # what foreign code would leave in the working folder
GONE = "(deleted)"  # stands for an entry's deletion
NESTED = {f"nested {n}": "[" * n + "]" * n for n in (9, 99, 400, 960, 3000)}

JUNK = [GONE, None, True, 0, -1, 10**12, 2**70, 1.5, math.nan, math.inf, "", "x", "a\nb", "é" * 5000, "\ud800", "${x}"]
JUNK += [[], [[]], [3, 3], ["x", None], {}, {"x": 1}, {"kind": []}, {"_target_": []}, [[[["x"] * 9] * 9] * 9]]
PICKLED = [*JUNK, torch.zeros(3), torch.tensor(3), torch.tensor([3, 3]), torch.zeros(3, device="meta"), {3: [{}]}]
PICKLED += [b"\xff", {3}, (3, 3), 1j, torch.float16, 10**5000, {"d_model": torch.tensor([3, 3])}, [torch.zeros(3)]]
METHODS = ("double", "int", "bool", "cfloat", "to_sparse", "sum", "tolist", "flatten", "isnan", "numel", "unbind")
TORN = [getattr(torch.Tensor, name) for name in METHODS] + [lambda tensor: tensor.to("meta"), lambda tensor: tensor[:1]]
TEXT = "".join(f"Line {i} says that {i} times {i} is {i * i}.\n" for i in range(40))
SHORT = ("experiment=smoke", "data=text", "data.path=my.txt", "model.d_model=4", "console=quiet")


def fuzz(n_inputs):
    checks = list(HealthCheck)  # of inputs that are slow or large to make, as these are
    return settings(max_examples=n_inputs, derandomize=True, deadline=None, database=None, suppress_health_check=checks)


class Made(SimpleNamespace):
    """What a fixture made, of which the report of a failure shows nothing."""

    def __repr__(self):
        return "made"


@contextmanager
def limited():
    """Fail for what takes long, or much memory."""
    late = []

    def interrupt(*_):
        late.append(True)
        raise TimeoutError

    before, handler = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        assert not late, f"takes more than {PATIENCE} s"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ROOM


def outcome(read, *arguments):
    """What read gives, or None if it refuses: with a UserError that a line of gptmini raises, in one line."""
    try:
        with limited():
            return read(*arguments)
    except UserError as caught:
        error = caught
    raised_by = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    ours = any(raised_by.is_relative_to(ROOT / folder) for folder in ("gptmini", "scripts"))
    assert ours, f"{raised_by} says: {error}"
    assert len(str(error).splitlines()) == 1, str(error)
    return None


def refused(act):
    """Whether act ends as a mistake does on the command line: exit code 2 and one line on stderr."""
    said = io.StringIO()
    try:
        with redirect_stderr(said), limited(), errors.one_line_errors():
            act()
        return False
    except SystemExit as end:
        code = end.code
    except RecursionError:  # pytest takes minutes to print one of Hydra's
        raise AssertionError("ends in a RecursionError") from None
    assert code == 2
    assert [line[:7] for line in said.getvalue().splitlines()] == ["error: "]
    assert said.getvalue() != "error: \n"
    return True


def same(one, other):
    """Whether two trees of plain data and tensors are equal, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        alike = (one.dtype, one.layout, one.device) == (other.dtype, other.layout, other.device)
        return alike and torch.equal(one, other)
    return one == other or (one != one and other != other)  # not a number


KINDS = st.sampled_from(["flip", "cut", "overwrite", "insert", "repeat"])
DAMAGE = st.lists(st.tuples(KINDS, st.integers(0, 2**20), st.binary(min_size=1, max_size=9)), min_size=1, max_size=3)


def damaged(data, damage):
    """Bytes after each damage, at a place that is counted round and round."""
    whole = data
    for kind, place, content in damage:
        at = place % max(1, len(data))
        after = data[at:]
        end = {
            "flip": bytes(byte ^ 1 << content[0] % 8 for byte in after[:1]) + after[1:],
            "cut": b"",
            "overwrite": content + after[len(content) :],
            "insert": content + after,
            "repeat": after[: 64 * len(content)] + after,
        }
        data = data[:at] + end[kind]
    assume(data != whole)
    return data


def places(tree):
    """The path to every entry of a tree of dicts and lists, to the first three of a list."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:3]) if isinstance(tree, list) else ()
    for key, value in items:
        yield (key,)
        yield from ((key, *path) for path in places(value))


@st.composite
def changes(draw, tree, values):
    """The path to one entry, and what is to stand there, or a function that makes it of what stands there."""
    path = draw(st.sampled_from([*places(tree)]))
    tensor = isinstance(reduce(getitem, path, tree), torch.Tensor)
    return path, draw(st.sampled_from(TORN if tensor and draw(st.booleans()) else values))


def changed(tree, change):
    """A copy of the tree with that change."""
    path, value = change
    tree = copy.deepcopy(tree)
    node = reduce(getitem, path[:-1], tree)
    if value is GONE:
        del node[path[-1]]
        return tree
    try:
        value = value(node[path[-1]]) if value in TORN else value
    except (RuntimeError, IndexError):  # this tensor has no such form
        assume(False)
    assume(not same(node[path[-1]], value))
    node[path[-1]] = value
    return tree


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The working folder."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("fuzz")
        (path / "my.txt").write_text(TEXT)
        patch.chdir(path)
        patch.delenv("GPTMINI_TRACEBACK", raising=False)
        yield path
    torch.set_num_threads(1)


# A checkpoint to sample from.

SMALLEST = {"context_length": 5, "d_model": 4, "n_layers": 1, "n_heads": 2}  # is read hundreds of times


@pytest.fixture(scope="module", params=[GPT2, MODERN], ids=["learned", "rotary"])
def written(request, folder):
    """A checkpoint of the smallest model: what was written, and its bytes."""
    config, path = GPTConfig(**request.param | SMALLEST), folder / "best.ckpt"
    own = header(config, tokenizer.CharTokenizer("abcdefghijk", end_of_text=False).to_dict(), step=7)
    weights = {f"model.{name}": tensor for name, tensor in new_gpt(config, seed=1).state_dict().items()}
    write_checkpoint({"gptmini": own, "state_dict": weights}, path)
    return Made(path=path, whole={"gptmini": own, "state_dict": weights}, content=path.read_bytes())


def load(path):
    """Weights, configuration and tokenizer of a checkpoint, from which can be sampled."""
    model, tokens = gptmini.load(path)
    model(torch.tensor([[3, 1, 4]]))
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return weights, asdict(model.config), tokens.to_dict()


@fuzz(100)
@given(damage=DAMAGE)
def test_a_checkpoint_of_damaged_bytes_is_refused_or_gives_the_same_model(written, damage):
    written.path.write_bytes(damaged(written.content, damage))
    own = written.whole["gptmini"]
    if loaded := outcome(load, written.path):
        assert same(loaded, (written.whole["state_dict"], own["config"], own["tokenizer"]))
        assert same(read_checkpoint(written.path), written.whole)


@fuzz(400)
@given(data=st.data())
def test_a_checkpoint_that_claims_junk_is_refused_or_gives_the_same_weights(written, data):
    broken = changed(written.whole, data.draw(changes(written.whole, PICKLED)))
    torch.save(broken, written.path)
    if loaded := outcome(load, written.path):
        claimed = written.whole["gptmini"]["config"] | broken["gptmini"]["config"]  # may leave out what has a default
        assert same(loaded, (written.whole["state_dict"], claimed, broken["gptmini"]["tokenizer"]))


# A run to go on with: its checkpoint, and the configuration that lies beside it.


@pytest.fixture(scope="module")
def run(folder):
    """A finished run of four steps, and the commands, which from then on do all but the training itself."""
    config = launching.compose_checked("train", list(SHORT))
    train.train(config)
    (path,) = (folder / "runs" / "smoke").iterdir()
    text = (path / "config.yaml").read_text()
    checkpoint = torch.load(path / "checkpoints" / "last.ckpt", weights_only=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stopping, "fit_until_stopped", lambda *parts: Ending())
        patch.setattr("gptmini.training.run.link_latest", lambda *places: None)
        yield Made(path=path, config=config, text=text, checkpoint=checkpoint)


def go_on(run, path):
    """Best validation, model and optimizer state, by parameter, with which a run goes on from a file."""
    state, _ = find_training_state(path)
    plan = train.check_configuration(run.config)
    store = TokenStore(next(Path("data").iterdir()))
    fitted = train.build(plan, store, state)
    (kept,) = (callback for callback in fitted.callbacks if isinstance(callback, RunCheckpoints))
    build_trainer(
        plan.settings,
        run.path,
        device=plan.hardware.device,
        precision=plan.hardware.precision,
        callbacks=[kept],
        loggers=[],
        state=state,
    )
    module = fitted.module
    optimizer = module.configure_optimizers()
    names = module._names(optimizer)
    moments = {names[number]: kept for number, kept in optimizer.state_dict()["state"].items()}
    return kept.best, asdict(module.model.config), dict(module.state_dict()), moments


@pytest.mark.slow
@fuzz(400)
@given(data=st.data())
def test_a_run_goes_on_from_a_checkpoint_that_claims_junk_with_the_same_state_or_not_at_all(run, folder, data):
    whole = {key: run.checkpoint[key] for key in ("global_step", "optimizer_states", "state_dict", "callbacks")}
    whole["gptmini"] = run.checkpoint["gptmini"] | {
        "tokenizer": {"kind": "byte_pair"}
    }  # its ranks have a test of their own
    torch.save(changed(run.checkpoint, data.draw(changes(whole, PICKLED))), folder / "resumed.ckpt")
    if state := outcome(go_on, run, folder / "resumed.ckpt"):
        best, config, *state = state
        assert config == run.checkpoint["gptmini"]["config"]
        assert same(state, [whole["state_dict"], whole["optimizer_states"][0]["state"]])
        if best is not None:
            figures = asdict(best)
            kinds = {"loss": float, "bits_per_byte": float, "step": int}
            assert {key: type(value) for key, value in figures.items()} == kinds
            assert all(map(math.isfinite, figures.values()))


def resume(run, content):
    """Whether a run with this in its config.yaml is refused, or else the configuration with which it goes on."""
    from omegaconf import OmegaConf

    (run.path / "config.yaml").write_bytes(content)
    read = []

    def act():
        config = launching.compose_checked("train", [f"resume={run.path}"])
        read.append(OmegaConf.to_container(config))
        train.train(config)

    return refused(act) or read[0] | {"resume": None}


def as_read(config):
    """What resume returns for a configuration that is taken as it stands: all of it but the version."""
    return {key: value for key, value in config.items() if key != "version"} | {"resume": None}


def test_what_is_whole_is_read(run, written):
    written.path.write_bytes(written.content)
    assert same(load(written.path)[0], written.whole["state_dict"])
    assert same(go_on(run, run.path / "checkpoints" / "last.ckpt")[2], run.checkpoint["state_dict"])
    assert same(resume(run, run.text.encode()), as_read(yaml.safe_load(run.text)))


@pytest.mark.slow
@fuzz(150)
@given(damage=DAMAGE)
def test_a_damaged_configuration_is_refused_or_resumed_as_it_reads(run, damage):
    content = damaged(run.text.encode(), damage)
    config = resume(run, content)
    assert config is True or same(config, as_read(yaml.safe_load(content)))


@pytest.mark.slow
@fuzz(200)
@given(data=st.data())
def test_a_configuration_that_holds_junk_is_refused_or_resumed_as_it_reads(run, data):
    original = yaml.safe_load(run.text)
    elsewhere = [original["tokenizer"], original["trainer"], "gptmini.tokenizer.byte"]  # known, and of another place
    broken = changed(original, data.draw(changes(original, [*JUNK, *elsewhere])))
    config = resume(run, yaml.safe_dump(broken).encode())
    assert config is True or same(config, as_read(broken))


FOREIGN = [{"_target_": "os.mkdir", "path": RAN}, {"_target_": "os.mkdir", "_args_": [RAN]}, {"_target_": "os.getcwd"}]
FOREIGN += ["${oc.create:{_target_: os.mkdir, path: ran}}", "${oc.decode:'{_target_: os.mkdir, path: ran}'}"]
FOREIGN += [{"_target_": "${oc.decode:os.mkdir}", "path": RAN}, [{"x": {"_target_": "os.mkdir", "path": RAN}}]]


@fuzz(50)
@given(data=st.data())
def test_a_configuration_that_names_foreign_code_is_refused_and_nothing_runs(run, data):
    original = yaml.safe_load(run.text)
    broken = changed(original, data.draw(changes(original, FOREIGN)))
    assert resume(run, yaml.safe_dump(broken).encode()) is True
    assert not Path(RAN).exists()


ENDLESS = {"loop": "extra: &a [*a]", "loop of names": "extra: &a {x: *a}"}
ENDLESS["doubled"] = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]\n" for i in range(9))
ENDLESS |= {name: f"extra: {nest}" for name, nest in NESTED.items()}


@pytest.mark.parametrize("more", ENDLESS.values(), ids=ENDLESS)
def test_a_configuration_that_is_endless_or_deep_is_refused_or_read_in_time(run, more):
    original = yaml.safe_load(run.text)
    config = resume(run, (run.text + more).encode())
    assert config is True or same({key: config[key] for key in as_read(original)}, as_read(original))


# Prepared tokens.


def read_store(path):
    """Counts and tokens of both splits, and what else a run asks of them."""
    store = TokenStore(path)
    splits = ("train", "val")
    counts = [(store.n_tokens(split), store.n_bytes(split), store.tokens_per_byte(split)) for split in splits]
    tokens = [(str(store.tokens(split).dtype), store.tokens(split).tolist()) for split in splits]
    return counts, tokens, store.tokenizer, store.fingerprint


@pytest.fixture(scope="module", params=[tokenizer.character, tokenizer.byte])
def store(request, folder):
    """A prepared folder, what its files hold, and what they mean."""
    texts = {"train": ["the lazy dog", "jumps"], "val": ["over"]}
    corpus = SimpleNamespace(name="test", identity=lambda: texts, documents=texts.get)
    path = prepare(corpus, request.param, folder / "prepared")[0].folder
    return Made(path=path, files={file.name: file.read_bytes() for file in path.iterdir()}, tokens=read_store(path))


@fuzz(100)
@given(name=st.sampled_from(["meta.json", "train.bin", "val.bin"]), damage=DAMAGE)
def test_prepared_files_of_damaged_bytes_are_refused_or_give_the_same_tokens(store, name, damage):
    for file, content in store.files.items():
        (store.path / file).write_bytes(damaged(content, damage) if file == name else content)
    if tokens := outcome(read_store, store.path):
        assert same(tokens, store.tokens)


@fuzz(300)
@given(data=st.data())
def test_prepared_files_that_claim_junk_are_refused_or_give_the_same_tokens(store, data):
    for file, content in store.files.items():
        (store.path / file).write_bytes(content)
    meta = json.loads(store.files["meta.json"])
    del meta["digest"]
    path, value = data.draw(changes(meta, [*JUNK, "float16", "int16", "O", *NESTED]))
    assume(path[-1] != "bytes" or type(value) is not int or value < 1)  # nothing else says how long the text was
    text = json.dumps(changed(meta, (path, value)), sort_keys=True, separators=(",", ":"))  # as it is digested
    text = text.replace(f'"{value}"', NESTED.get(value, f'"{value}"')) if value in [*NESTED] else text
    digest = hashlib.sha256(text.encode()).hexdigest()
    (store.path / "meta.json").write_text(f'{{"digest":"{digest}",{text[1:]}')
    if tokens := outcome(read_store, store.path):
        assert same(tokens[:2], store.tokens[:2])


# Tokenizers.

TOKENIZERS = [tokenizer.CharTokenizer("abc", end_of_text=True), tokenizer.byte([], [])]
TOKENIZERS.append(tokenizer.bpe([TEXT], [TEXT], vocab_size=270))
FIELDS = [*PICKLED, "eA==", "eHg=", "eHg", "é", "eA==" * 10**5, {"char"}, "aba", "ab\ud800", r"\S", r"[\s\S]"]


@fuzz(400)
@given(data=st.data(), number=st.integers(0, 2))
def test_a_tokenizer_of_junk_is_refused_or_encodes_without_loss(data, number):
    original = TOKENIZERS[number].to_dict()
    state = changes(original, FIELDS).map(lambda change: changed(original, change)) | st.sampled_from(FIELDS)
    state = data.draw(state)
    if made := outcome(tokenizer.from_dict, state):
        text = state["characters"] if made.kind == "char" else "a cab, é \n<|endoftext|>"
        assert made.decode(made.encode(text)) == text


# The command line.

YAMLS = sorted((ROOT / "configs").glob("*/*.yaml"))
KEYS = [f"{file.parent.name}.{key}" for file in YAMLS for key in yaml.safe_load(file.read_text(encoding="utf-8"))]
KEYS += [*sorted({file.parent.name for file in YAMLS}), "callbacks", "callbacks.scalars", "callbacks.samples.top_k"]
KEYS += ["name", "seed", "resume", "runs_dir", "data_dir", "console", "hydra.run.dir", "_target_", "model._target_"]
VALUES = ["", "???", "null", "nan", "-inf", "1e400", "-1", "0", "1_0", "true", "x", "'", '"x"', "[", "[]", "{}", "[1,"]
VALUES += ["{a: 1}", "1,2", "range(1,3)", "choice(1,2)", "glob(*)", "int(x)", "x" * 5000, "9" * 5000, "a=b", "..", "/"]
VALUES += ["\0", "a\nb", "\udce9", "é", "@x", "\\", "tiny", "[tiny, gpt2]", "$", "${", "auto", "00:01", "::", "cpu"]
VALUES += [NESTED["nested 99"], NESTED["nested 400"], "{_target_: os.mkdir, path: ran}", "{max_steps: [1]}", str(2**70)]
VALUES += [f"${{{name}}}" for name in ("seed", "name", "model", "trainer.max_steps", "oc.env:NO", "oc.env:HOME", "x")]
VALUES += ["${oc.decode:[}", "${oc.create:{_target_: os.mkdir, path: ran}}", "${..seed}", "${hydra:job.name}", "${}"]
OVERRIDES = st.tuples(
    st.sampled_from(["", "", "", "", "+", "++", "~"]),
    st.sampled_from(KEYS) | st.sampled_from(KEYS) | st.sampled_from(KEYS) | st.text(max_size=9),
    st.sampled_from(["=", "=", "=", "=", "=", ""]),
    st.sampled_from(VALUES) | st.sampled_from(VALUES) | (st.integers() | st.floats()).map(str) | st.text(max_size=9),
)


@pytest.mark.slow
@fuzz(150)
@given(overrides=st.lists(OVERRIDES.map("".join), min_size=1, max_size=2))
def test_overrides_of_junk_make_a_configuration_or_are_refused_in_one_line(run, overrides):
    refused(lambda: train.check_configuration(launching.compose_checked("train", overrides)))


# Code in a checkpoint.


class Payload:
    """Unpickling this calls something."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


PAYLOADS = [Payload(os.mkdir, (RAN,)), Payload(os.system, (f"mkdir {RAN}",)), Payload(open, (RAN, "w"))]
PAYLOADS += [Payload(eval, (f"__import__('os').mkdir('{RAN}')",)), Payload(exec, (f"import os; os.mkdir('{RAN}')",))]
PAYLOADS += [
    Payload(subprocess.call, (["mkdir", RAN],)),
    Payload(Path.touch, (Path(RAN),)),
    Payload(torch.save, (1, RAN)),
]


@fuzz(60)
@given(data=st.data(), payload=st.sampled_from(PAYLOADS), form=st.sampled_from(["zip", "old", "pickle"]))
def test_code_in_a_checkpoint_is_refused_and_never_runs(run, folder, data, payload, form):
    path = folder / "code" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    place, _ = data.draw(changes(run.checkpoint, [None]))
    broken = changed(run.checkpoint, (place, payload))
    if form == "pickle":
        path.write_bytes(pickle.dumps(broken))
    else:
        torch.save(broken, path, _use_new_zipfile_serialization=form == "zip")
    assert outcome(read_checkpoint, path) is None
    assert outcome(find_training_state, path) is None
    assert outcome(find_training_state, folder / "code") is None
    assert not Path(RAN).exists()
