"""Every mistake ends in one line that names the key, the value and the remedy, with exit code 2 and no run folder."""

import errno
import os
import pickle
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from hydra.errors import InstantiationException

import gptmini
from toys import change_meta

FULL = Path("/dev/full")  # Linux: every write to it fails as on a full disk
PAYLOAD = "payload-ran"
# Runs gptmini as python -m does, and prints at its end which libraries it has loaded.
PROBE = """
import atexit, runpy, sys
atexit.register(lambda: print(sorted({"torch", "lightning", "pydantic"} & set(sys.modules))))
sys.argv[0] = "gptmini"
runpy.run_module("gptmini", run_name="__main__")
"""


class Payload:
    """Unpickling this would leave a file."""

    def __reduce__(self):
        return os.mkdir, (PAYLOAD,)


KEYS = [
    (["trainer.max_stepz=4"], "trainer.max_stepz is no key; the nearest is trainer.max_steps"),
    (["+trainer.max_stepz=4"], "trainer.max_stepz is no key; the nearest is trainer.max_steps"),
    (["+trainer={max_stepz: 4}"], "trainer.max_stepz is no key; the nearest is trainer.max_steps"),
    (["modle=tiny"], "modle is no key; the nearest is model"),
    (["+foo=1"], "foo is no key; --help lists them"),
    (
        ["data=pydoc", "data.path=my.txt"],
        "data.path is no key here; data=shakespeare and data=text and data=tokens have it",
    ),
    (
        ["optimizer=adamw", "optimizer.momentum=0.9"],
        "optimizer.momentum is no key here; optimizer=muon has it",
    ),
    (["callbacks.stop.patience=3"], "callbacks.stop.patience is no key; the nearest is callbacks"),
    (
        ["+callbacks.scalar.every_steps=7"],
        "callbacks.scalar is no key; the nearest is callbacks.scalars; a part of your own must name its class",
    ),
    (["+callbacks.stop=7"], "must name its class under _target_, got 7"),
    (["--help", "trainer.max_stepz"], "trainer.max_stepz is no key; the nearest is trainer.max_s"),
]
OPTIONS = [
    (["model=tyny"], "model must be one of gpt2, modern, tiny, xl, got tyny; the nearest is model"),
    (["experiment=none"], "experiment must be one of finetune, "),
    (["hydra/launcher=none"], "hydra/launcher must be one of basic, "),
]
NOTATION = [
    (["trainer.max_steps"], "what is typed must be KEY=VALUE, got trainer.max_steps\n"),
    (
        ["my.txt"],
        "must be KEY=VALUE, got my.txt; data=text data.path=my.txt chooses it as the text",
    ),
    (["data.path=[a.txt,", "b.txt]"], "the shell cuts at spaces: a list or a mapping needs quotes"),
    (["trainer.max_steps=["], "trainer.max_steps=[ is no list or mapping that Hydra can read"),
    (["optimizer.lr=1e-3,3e-4"], "optimizer.lr=1e-3,3e-4 stands for several runs; gptmini sweep"),
    (["optimizer.lr=${nowhere}"], "optimizer.lr: Interpolation key 'nowhere' not found"),
    (["data.path=a${b.txt"], 'override data.path="a${b.txt"'),
    (["data.path=???"], "data.path must be given, as in data.path=VALUE"),
    (["~trainer.max_steps"], "trainer.max_steps must be given, as in trainer.max_steps=VALUE"),
    (["~seed"], "seed must be given, as in seed=VALUE"),
]
FLAGS = [
    (["--multirunn"], "unrecognized arguments: --multirunn; the nearest is --multirun"),
    (["--no-such-flag"], "unrecognized arguments: --no-such-flag; --help lists what there is"),
    (
        ["--experimental-rerun", "x"],
        "--experimental-rerun would load pickled code; resume= goes on",
    ),
    (["--config-dir", "absent"], "--config-dir must be a folder, got absent"),
    (["--config-path", "."], "--config-dir adds a folder to them"),
    (["-m", "folder=runs/x", "seed=1,2"], "folder=runs/x names one run, and -m asks for several"),
    (["--info", "all", "-m"], "Only one of --run, --multirun, --cfg, --info"),
]
VALUES = [
    (["model.dropout=1.5"], "model.dropout must be less than 1, got 1.5"),
    (["model.d_model=ninety"], "model.d_model must be a valid integer, got 'ninety'"),
    (["model.d_model=16.0"], "model.d_model must be a valid integer, got 16.0"),
    (
        ["model.n_layers=10000000"],
        "model.n_layers must be less than or equal to 10000, got 10000000",
    ),
    (["model.n_heads=3"], "d_model must be a multiple of n_heads, got d_model=16 and n_heads=3"),
    (
        ["model.d_model=x", "model.n_layers=0"],
        "model.d_model must be a valid integer, got 'x'; model.n_layers must be greater than",
    ),
    ([f"seed={'9' * 5000}"], "Exceeds the limit (4300 digits)"),
    (["seed=-1"], "seed must be greater than or equal to 0, got -1"),
    (["seed=true"], "seed must be a valid integer, got True"),
    (["name=a/b"], "name must be a plain file name, without a path, got 'a/b'"),
    (["name=latest"], "name must be another name than latest, which leads to the newest run"),
    (["runs_dir=null"], "runs_dir must be a valid string, got None"),
    (["num_workers=many"], "num_workers must be a valid integer or 'auto', got 'many'"),
    (["optimizer.lr=fast"], "optimizer.lr must be a valid number, got 'fast'"),
    (["optimizer.lr=1e308"], "optimizer.lr must be less than or equal to 34028234"),
    (["optimizer.betas=[0.9]"], "optimizer.betas must have at least 2 items"),
    (["schedule.warmup_steps=-1"], "schedule.warmup_steps must be greater than or equal to 0, got"),
    (
        ["trainer.batch_size=3"],
        "a multiple of trainer.batch_size times the number of devices, got 4, 3 and 1; trainer.batch_size=2 fits",
    ),
    (
        ["trainer.devices=3"],
        "must be a multiple of the number of devices, got 4 and 3; 2 devices or",
    ),
    (["trainer.device=cuda"], "device=cuda is not on this machine; use device=auto"),
    (["trainer.precision=fp8"], "must be 'auto', 'fp32', 'bf16' or 'bf16_stream', got 'fp8'"),
    (["trainer.max_time=1:2:x"], "trainer.max_time must be a valid number or match pattern"),
    (["callbacks.samples.top_k=2.5"], "callbacks.samples.top_k must be a valid integer, got 2.5"),
    (["callbacks.samples.prompts=Line"], "callbacks.samples.prompts must be a valid list, got 'L"),
    (
        ["tokenizer=bpe", "tokenizer.vocab_size=9"],
        "tokenizer.vocab_size must be greater than or equ",
    ),
    (["data.val_fraction=2"], "data.val_fraction must be less than 1, got 2"),
    (
        ["freeze=[nothing]"],
        "freeze=nothing names no weights of this model; its parts are embedding",
    ),
]
PARTS = [
    (
        ["+callbacks.stop._target_=no.such.Class"],
        "callbacks.stop cannot be made: Error loading 'no",
    ),
    (
        ["+logger.mine={_target_: lightning.pytorch.loggers.CSVLogger, folder: x}"],
        "logger.mine does not fit: ",
    ),
    (
        [
            "+callbacks.stop={_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: x, mode: up}"
        ],
        "callbacks.stop cannot be made: `mode` can be min, max, got up",
    ),
]
PLACES = [
    (["resume=nowhere"], "nowhere does not exist; give a run folder"),
    (["resume="], "the name of a run must not be empty"),
    (
        ["resume=runs/latest", "folder=x"],
        "resume= names the run to go on with, and folder= that too",
    ),
    (
        ["data.path=absent.txt"],
        "data.path must be a file, a folder or a glob that matches, got absent",
    ),
    (["data.path='\udce9.txt'"], "got \\udce9.txt, which does not exist"),
    (["data.path=empty.txt"], "empty.txt must hold text, got none"),
    (
        ["data.path=latin.txt"],
        "latin.txt must be UTF-8, got byte 0xe9 at offset 3, in line 1; data.encoding names",
    ),
    (["data.path=folder"], "data.path must hold files of text, got the folder folder with none"),
    (
        ["data.path=short.txt"],
        "the val split must hold one window of context_length=8 tokens and a",
    ),
    (["data_dir=my.txt"], "error: my.txt: File exists\n"),
    (["runs_dir=my.txt"], "error: my.txt/smoke: Not a directory\n"),
]
MISTAKES = [*KEYS, *OPTIONS, *NOTATION, *FLAGS, *VALUES, *PARTS, *PLACES]


@pytest.fixture
def texts(script, tmp_path):
    """Files and folders in the working folder that hold no text to train on."""
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1") * 99)
    (tmp_path / "short.txt").write_text("x" * 40)
    (tmp_path / "folder").mkdir()


@pytest.mark.parametrize(("overrides", "said"), MISTAKES, ids=lambda value: " ".join(value)[:40])
def test_training_refuses(script, short, texts, tmp_path, overrides, said):
    if overrides == ["trainer.device=cuda"] and torch.cuda.is_available():
        pytest.skip("a CUDA device is here")

    script("train", *short, *overrides).assert_refused(said)
    assert not (tmp_path / "runs").exists()
    assert list(tmp_path.rglob(".*")) == []


def test_a_prompt_that_the_tokenizer_lacks_is_refused_before_the_first_step(script, short):
    result = script("train", *short, "tokenizer=char", "callbacks.samples.prompts=['é']")
    result.assert_refused("got 'é' (U+00E9) at position 0")
    assert "step 1" not in result.out


@pytest.mark.parametrize(
    "override", ["trainer.max_stepz=4", "model=tyny", "model.dropout=1.5", "data.path=absent.txt"]
)
def test_a_call_from_python_is_refused_in_the_same_sentence(script, short, override):
    with pytest.raises(gptmini.UserError) as caught:
        gptmini.train(*short, override)
    assert script("train", *short, override).err == f"error: {caught.value}\n"


@pytest.mark.parametrize(
    ("override", "loaded"), [("trainer.max_stepz=4", []), ("model.dropout=1.5", ["pydantic"])]
)
def test_a_mistake_is_told_before_what_takes_seconds_is_imported(tmp_path, override, loaded):
    command = [sys.executable, "-c", PROBE, "train", override]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (result.returncode, result.stdout) == (2, f"{loaded}\n"), result


def test_an_error_keeps_its_traceback_where_that_is_asked_for(script, short, monkeypatch):
    monkeypatch.setenv("GPTMINI_TRACEBACK", "1")
    with pytest.raises(InstantiationException, match="less than 1"):
        script("train", *short, "model.dropout=1.5")


def test_a_bug_keeps_its_traceback(script, short, monkeypatch):
    def fail(*arguments, **keywords):
        raise ZeroDivisionError

    monkeypatch.setattr("gptmini.commands.train.fit", fail)
    with pytest.raises(ZeroDivisionError):
        script("train", *short)


def test_a_pipe_that_breaks_and_is_not_stdout_is_an_error(script, short, monkeypatch):
    def fail(*arguments, **keywords):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr("gptmini.commands.train.fit", fail)
    script("train", *short).assert_refused("error: input or output: Broken pipe\n")


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has /dev/full")
def test_a_full_disk_behind_stdout_is_told(tmp_path):
    command = [sys.executable, "-m", "gptmini", "--help"]
    with FULL.open("wb") as full:
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, text=True, check=False
        )
    assert result.returncode != 0
    assert result.stderr == "error: the disk: No space left on device\n"


def test_gpt2_without_network_and_cache_names_both_ways_out(script, short, tmp_path, monkeypatch):
    import tiktoken.registry
    from requests import ConnectionError, Session

    def unreachable(*arguments, **keywords):
        raise ConnectionError("no network")

    monkeypatch.setattr(Session, "request", unreachable)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "no-cache"))

    script("train", *short, "tokenizer=gpt2").assert_refused("TIKTOKEN_CACHE_DIR", "tokenizer=bpe")


def test_an_edited_prepared_folder_is_refused(script, short, prepared, tmp_path):
    assert script("prepare", *prepared).code == 0

    (meta,) = tmp_path.glob("data/*/meta.json")
    meta.write_text(meta.read_text().replace('"uint16"', '"uint32"'))
    result = script("train", *short)
    result.assert_refused("meta.json was edited: its digest does not match; delete data/")
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def trained(script, short, once, tmp_path):
    """The best checkpoint of a trained run in the working folder."""
    once("trained on characters", lambda: script("train", *short, "tokenizer=char"))
    return tmp_path / "runs" / "latest" / "checkpoints" / "best.ckpt"


@pytest.mark.parametrize("name", ["sample", "evaluate"])
def test_what_is_no_checkpoint_is_refused_unread(script, trained, tmp_path, name):
    whole = trained.read_bytes()
    (tmp_path / "cut.ckpt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    (tmp_path / "raw.ckpt").write_bytes(pickle.dumps(Payload()))

    checkpoint = torch.load(trained, weights_only=True)
    torch.save(checkpoint | {"optimizer_states": Payload()}, tmp_path / "code.ckpt")

    # A bit of the largest tensor: what lies between the entries of the file is padding.
    with zipfile.ZipFile(trained) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    end_of_header = whole.index(largest.filename.encode(), largest.header_offset) + 64
    flipped = bytearray(whole)
    flipped[end_of_header + largest.file_size // 2] ^= 1
    (tmp_path / "flipped.ckpt").write_bytes(flipped)

    messages = {
        "cut": "cut short",
        "text": "is not a checkpoint",
        "raw": "is not a checkpoint",
        "code": "must hold only tensors and plain data; refused without running it",
        "flipped": "is damaged: the CRC-32",
        "absent": "does not exist; give a run folder",
    }
    for file, message in messages.items():
        script(name, f"{file}.ckpt").assert_refused(f"{file}.ckpt", message)
    assert not (tmp_path / PAYLOAD).exists()


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("sample", ["--prompt", "é"], "got 'é' (U+00E9) at position 0"),
        (
            "sample",
            ["--temperature", "-1"],
            "temperature must be greater than or equal to 0, got -1",
        ),
        ("sample", ["--top-k", "0"], "got 0"),
        ("sample", ["--top-p", "1.5"], "top_p must be less than or equal to 1, got 1.5"),
        (
            "sample",
            ["--num-samples", "0"],
            "--num-samples: must be a whole number of at least 1, got",
        ),
        ("sample", ["--device", "gpu"], "device=gpu is not on this machine; use device=auto"),
        ("sample", ["--prompt-file", "absent.txt"], "absent.txt: No such file or directory"),
        ("sample", ["--temprature", "1"], "--temprature 1; the nearest is --temperature"),
        (
            "evaluate",
            ["--data", "absent"],
            "absent must be a prepared folder, and it does not exist",
        ),
        (
            "evaluate",
            ["--max-tokens", "0"],
            "--max-tokens: must be a whole number of at least 1, got",
        ),
        (
            "evaluate",
            ["--batch-size", "-3"],
            "--batch-size: must be a whole number of at least 1, got",
        ),
    ],
)
def test_commands_on_a_run_refuse(script, trained, name, arguments, said):
    script(name, "runs/latest", *arguments).assert_refused(said)


def test_a_data_folder_that_is_no_name_is_refused(script, trained):
    checkpoint = torch.load(trained, weights_only=True)
    checkpoint["gptmini"]["data"]["folder"] = -1
    torch.save(checkpoint, "odd.ckpt")
    script("evaluate", "odd.ckpt").assert_refused("does not say where its tokens are")


def test_evaluating_finds_tokens_relative_to_the_run(script, trained, tmp_path, monkeypatch):
    here = script("evaluate", "runs/latest").out
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    result = script("evaluate", "../runs/latest")
    assert (result.code, result.err) == (0, "")
    assert result.out.partition("\n")[2] == here.partition("\n")[2]


def test_tokens_of_another_tokenizer_are_refused(script, prepared, trained):
    assert script("prepare", *prepared).code == 0
    folder = next(path for path in trained.parents[3].glob("data/text-byte-*"))
    script("evaluate", "runs/latest", "--data", str(folder)).assert_refused("got those of another")


def test_tokens_beyond_the_vocabulary_are_refused_by_every_command_that_reads_them(script, trained):
    (folder,) = trained.parents[3].glob("data/text-character-*")
    train = folder / "train.bin"
    train.write_bytes(b"\xff\xff" + train.read_bytes()[2:])
    crc32 = zlib.crc32(train.read_bytes())
    change_meta(folder, lambda meta: meta["train"].update(crc32=[crc32], largest_id=65535))

    said = ("train.bin must hold ids below ", ", got 65535; delete ")
    script("evaluate", "runs/latest", "--split", "train").assert_refused(*said)
    script("train", "resume=runs/latest", "trainer.max_steps=5").assert_refused(*said)
