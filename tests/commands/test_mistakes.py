"""Every mistake ends in one line that names it and the remedy, exit code 2, and nothing half-written."""

import os
import pickle
import re
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
import torch

from toys import change_meta

TRAIN = Path(__file__).parent.parent.parent / "scripts" / "train.py"
PAYLOAD = "payload-ran"
# Runs a script as python does, and prints at its end which frameworks it has loaded.
PROBE = """
import atexit, runpy, sys
atexit.register(lambda: print(sorted({"torch", "lightning"} & set(sys.modules))))
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Payload:
    """Unpickling this would leave a file."""

    def __reduce__(self):
        return os.mkdir, (PAYLOAD,)


def assert_refused(result, message):
    assert result.code == 2, result
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.err
    assert re.search(message, result.err), result.err


TRAINING = [
    (
        ["trainer.max_step=3"],
        r"no configuration here has the key trainer\.max_step; the nearest is trainer\.max_steps",
    ),
    (
        ["+trainer.max_step=3"],
        r"no configuration here has the key trainer\.max_step; the nearest is trainer\.max_steps",
    ),
    (
        ["--cfg", "job", "+trainer.max_step=3"],
        r"no configuration here has the key trainer\.max_step; the nearest is trainer\.max_steps",
    ),
    (["modle=tiny"], "has the key modle; the nearest is model"),
    (["+trainer={max_step: 3}"], r"the key trainer\.max_step; the nearest is trainer\.max_steps"),
    (
        ["data=pydoc", "data.path=my.txt"],
        r"has the key data\.path; data=shakespeare and data=text and data=tokens have it",
    ),
    (["optimizer=adamw", "optimizer.momentum=0.9"], r"optimizer\.momentum; optimizer=muon has it"),
    (["model=tyny"], "error: model must be one of gpt2, modern, tiny, xl, got tyny$"),
    (["experiment=none"], "experiment must be one of .*nanogpt_cpu.*, got none$"),
    (["trainer.max_steps"], "what is typed must be KEY=VALUE, got trainer.max_steps$"),
    (
        ["empty.txt"],
        "KEY=VALUE, got empty.txt; data=text data.path=empty.txt chooses it as the text",
    ),
    (["data.sources={a:", "{path: a}}"], "{a: cannot be read; the shell cuts at spaces"),
    (["data.path=[a.txt,", "b.txt]"], "the shell cuts at spaces: a list or a mapping needs quotes"),
    (["optimizer.lr=1e-3,3e-4"], "To sweep over it, add --multirun"),
    (["data.path=???"], r"data\.path must be given, as in data\.path=VALUE"),
    (
        ["~trainer.max_steps"],
        r"trainer\.max_steps must have a value; change it with trainer\.max_steps=VALUE",
    ),
    (["optimizer.lr=${nowhere}"], r"optimizer\.lr: Interpolation key 'nowhere' not found"),
    (["+callbacks.z={_target_: Zähler}"], "cannot be read: .*'ä'; a list or a mapping holds other"),
    (["~seed"], "seed must have a value; change it with seed=VALUE"),
    (["~model"], "model must have an option; model=NAME chooses one"),
    (["~callbacks"], "callbacks must have an option; callbacks=none leaves all out"),
    (["optimizer.lr=1e308"], "lr must be a number that float32 holds, got 1e.308"),
    (
        ["-m", "hydra.sweeper.max_batch_size=0", "seed=1,2"],
        r"hydra\.sweeper\.max_batch_size must be",
    ),
    (
        ["--experimental-rerun", "x"],
        "--experimental-rerun would load pickled code; resume= goes on",
    ),
    (["--resolve"], "--resolve belongs to --cfg, which shows the configuration"),
    (["--resolve", "--help"], "--resolve belongs to --cfg"),
    (["-p", "model"], "--package belongs to --cfg"),
    (["--run", "--multirun"], "--run and --multirun do not go together"),
    (["--info", "all", "-m"], "--multirun and --info do not go together"),
    (["-m", "optimizer=glob(zz*)"], "the sweep has no job"),
    (["-m", "trainer.max_steps=range(1,1)"], "the sweep has no job"),
    (["-m", "trainer.max_steps=range(1,3,0)"], r"range\(1,3,0\) is no sweep"),
    (["model.d_model=ninety"], "d_model must be int, got d_model='ninety'"),
    (["model.d_model=16.0"], "d_model must be int, got d_model=16.0"),
    ([f"seed={'9' * 5000}"], "a whole number must have at most 4300 digits"),
    (["model.n_heads=3"], "d_model must be a multiple of n_heads, got d_model=16 and n_heads=3"),
    (["model.dropout=1"], "dropout must be at least 0 and below 1, got dropout=1"),
    (
        ["trainer.max_steps=ten"],
        r"trainer\.max_steps must be a whole number of at least 1, got 'ten'",
    ),
    (
        ["trainer.batch_size=3"],
        r"a multiple of trainer\.batch_size times the number of devices, got 4, 3 and 1; trainer\.batch_size=2 fits",
    ),
    (
        ["trainer.batch_size=most"],
        r"trainer\.batch_size must be a whole number of at least 1, or auto, got 'most'",
    ),
    (
        ["trainer.batch_size=null"],
        r"trainer\.batch_size must be a whole number of at least 1, or auto, got None",
    ),
    (
        ["trainer.devices=3"],
        r"global_batch_size must be a multiple of the number of devices, got 4 and 3",
    ),
    (["trainer.device=cuda"], "device=cuda is not on this machine; use device=auto"),
    (
        ["trainer.precision=fp8"],
        "precision must be one of auto, fp32, bf16, bf16_stream, got 'fp8'",
    ),
    (["optimizer.lr=fast"], "lr must be a finite number of at least 0, got 'fast'"),
    (["optimizer.betas=[0.9]"], r"betas must be two numbers from 0 to below 1, got \[0\.9\]"),
    (["schedule.warmup_steps=-1"], "warmup_steps must be a whole number of at least 0, got -1"),
    (
        ["callbacks.scalars.every_steps=0"],
        "every_steps must be a whole number of at least 1, got 0",
    ),
    (["callbacks.samples.temperature=-1"], "temperature must be a finite number of at least 0"),
    (["callbacks.samples.top_k=2.5"], "top_k must be a whole number of at least 1, got 2.5"),
    (
        ["callbacks.samples.temperature=hot"],
        "temperature must be a finite number of at least 0, got 'hot'",
    ),
    (["runs_dir=null"], "runs_dir must be text, got None"),
    (["hydra.run.dir=elsewhere"], r"no configuration here has the key hydra\.run\.dir"),
    (["callbacks.samples.prompts=Line"], "prompts must be a list of texts, got 'Line'"),
    (["callbacks.samples.prompts=[]"], r"prompts must be a list of texts, got \[\]"),
    (["callbacks.samples.prompts=['é']", "tokenizer=char"], r"got 'é' \(U\+00E9\) at position 0"),
    (["tokenizer=bpe", "tokenizer.vocab_size=100"], "vocab_size must be from 257"),
    (
        ["data.path='\udce9.txt'"],
        r"every value must be Unicode without lone surrogates, got U\+DCE9; rename the file",
    ),
    (["name=a/b"], "name must be a plain folder name"),
    (["seed=-1"], "seed must be a whole number from 0 to 9223372036854775807, got -1"),
    (["data.path=absent.txt"], "got absent.txt, which does not exist"),
    (["data.path=empty.txt"], "empty.txt must hold text, got none"),
    (
        ["data.path=latin.txt"],
        "latin.txt must be UTF-8, got byte 0xe9 at offset 3; convert it first",
    ),
    (
        ["data.path=short.txt"],
        "the val split must hold one window of context_length=8 tokens and a target, got 5 tokens",
    ),
    (["data.path=folder"], "data.path must hold files of text, got the folder folder with none"),
    (["data.val_fraction=2"], "val_fraction must be a number above 0 and below 1, got 2"),
]


@pytest.mark.parametrize(("overrides", "message"), TRAINING, ids=lambda value: " ".join(value)[:40])
def test_training_refuses(script, short, tmp_path, overrides, message):
    if overrides == ["trainer.device=cuda"] and torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1") * 99)
    (tmp_path / "short.txt").write_text("x" * 40)
    (tmp_path / "folder").mkdir()

    assert_refused(script("train", *short, *overrides), message)
    assert not (tmp_path / "runs").exists()

    leftovers = list(tmp_path.rglob(".*"))
    assert leftovers == []


def test_a_sweep_is_checked_whole_before_its_first_run(script, short, tmp_path):
    assert_refused(
        script("train", "-m", *short, "optimizer.lr=1e-3", "trainer.max_step=1,2"), "max_step"
    )
    assert not (tmp_path / "runs").exists()


def test_gpt2_without_network_and_cache_names_both_ways_out(script, short, tmp_path, monkeypatch):
    import tiktoken.registry
    from requests import ConnectionError, Session

    def unreachable(*arguments, **keywords):
        raise ConnectionError("no network")

    monkeypatch.setattr(Session, "request", unreachable)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "no-cache"))

    assert_refused(script("train", *short, "tokenizer=gpt2"), "TIKTOKEN_CACHE_DIR .* tokenizer=bpe")


def test_a_text_that_mixes_line_ends_is_said_once(script, short, prepared, tmp_path):
    (tmp_path / "my.txt").write_bytes(b"One line.\r\nAnother.\n" * 99)
    said = r"99 line ends of the kind \r\n and 99 of the kind \n"
    assert script("prepare", *prepared).out.count(said) == 1
    assert script("prepare", *prepared).out.count(said) == 0


def test_an_edited_prepared_folder_is_refused(script, short, prepared, tmp_path):
    assert script("prepare", *prepared).code == 0

    (meta,) = tmp_path.glob("data/*/meta.json")
    meta.write_text(meta.read_text().replace('"uint16"', '"uint32"'))
    result = script("train", *short)
    assert_refused(result, "meta.json was edited: its digest does not match; delete data/")
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
        assert_refused(script(name, f"{file}.ckpt"), rf"{file}\.ckpt.*{message}")
    assert not (tmp_path / PAYLOAD).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "é"], r"every character must be among .* got 'é' \(U\+00E9\) at position 0"),
        (["--temperature", "-1"], "temperature must be a finite number of at least 0"),
        (["--top-k", "0"], "top_k must be a whole number of at least 1, got 0"),
        (["--top-p", "1.5"], "top_p must be a number above 0 and at most 1, got 1.5"),
        (["--num-samples", "0"], "--num-samples must be at least 1, got 0"),
        (["--max-new-tokens", "0"], "max_new_tokens must be a whole number of at least 1, got 0"),
        (["--device", "gpu"], "device must be one of auto, cpu, cuda, mps, got 'gpu'"),
        (["--prompt-file", "absent.txt"], "absent.txt: No such file or directory"),
    ],
)
def test_sampling_refuses(script, trained, arguments, message):
    assert_refused(script("sample", "runs/latest", *arguments), message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--data", "absent"],
            "absent must be a prepared folder, and it does not exist; prepare its text again",
        ),
        (["--max-tokens", "0"], "--max-tokens must be at least 1, got 0"),
        (["--batch-size", "-3"], "--batch-size must be at least 1, got -3"),
    ],
)
def test_evaluating_refuses(script, trained, arguments, message):
    assert_refused(script("evaluate", "runs/latest", *arguments), message)


def test_a_data_folder_that_is_no_name_is_refused(script, trained):
    checkpoint = torch.load(trained, weights_only=True)
    checkpoint["gptmini"]["data"]["folder"] = -1
    torch.save(checkpoint, "odd.ckpt")
    assert_refused(script("evaluate", "odd.ckpt"), "does not say where its tokens are")


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
    assert_refused(script("evaluate", "runs/latest", "--data", str(folder)), "got those of another")


def test_tokens_beyond_the_vocabulary_are_refused_by_every_command_that_reads_them(script, trained):
    (folder,) = trained.parents[3].glob("data/text-character-*")
    train = folder / "train.bin"
    train.write_bytes(b"\xff\xff" + train.read_bytes()[2:])
    crc32 = zlib.crc32(train.read_bytes())
    change_meta(folder, lambda meta: meta["train"].update(crc32=[crc32], largest_id=65535))

    message = r"train.bin must hold ids below \d+, .*, got 65535; delete "
    assert_refused(script("evaluate", "runs/latest", "--split", "train"), message)
    assert_refused(script("train", "resume=runs/latest", "trainer.max_steps=5"), message)


def test_a_typo_costs_no_framework(tmp_path):
    command = [sys.executable, "-c", PROBE, str(TRAIN), "trainer.max_step=3"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (result.returncode, result.stdout) == (2, "[]\n"), result
