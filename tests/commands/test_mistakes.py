"""Every mistake gives one line with the key, the value and the fix, and exit code 2. It changes no run.

The tests of each package check its own messages. Here each command shows one of them.
"""

import errno
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra.errors import InstantiationException

import gptmini
from commands.resuming.readings import snapshot
from gptmini.commands import main

FULL = Path("/dev/full")  # Linux: every write fails, as on a full disk
# The tiny run on a text that each row names.
TINY = "train experiment=smoke data=text"
STOP = "_target_: lightning.pytorch.callbacks.EarlyStopping"

# Arguments of gptmini, and words of the error line: keys, values, options and the right form.
PROGRAM = [
    ("trian", "trian train"),
    ("train ''", "data.path"),
    ("train --no-such-flag", "--no-such-flag --help"),
    ("train --folder=x", "--folder folder=x"),
    ("help ''", "'' train sweep runs"),
    ("train --multi seed=1,2", "--multi --multirun"),
    ("train --experimental-rerun x", "--experimental-rerun"),
    ("train --config-dir absent", "--config-dir absent"),
    ("train --config-path .", "--config-path --config-dir"),
    ("train -m folder=runs/x seed=1,2", "folder=runs/x -m folder=runs/mine/${hydra:job.num}"),
    ("train --cfg hydra resume=x", "--cfg job hydra"),
]
KEYS = [
    ("train trainer.max_stepz=4", "trainer.max_stepz trainer.max_steps"),
    ("train --help trainer.max_stepz", "trainer.max_stepz trainer.max_steps"),
    ("prepare trainer.max_stepz=4", "trainer.max_stepz trainer.max_steps"),
    ("train modle=tiny", "modle model"),
    ("train inspect=true", "inspect prepare"),
    ("train sweep.trials=3", "sweep.trials sweep"),
    ("train data.path=my.txt", "data.path data=text gptmini train FILE"),
    ("train optimizer=adamw optimizer.momentum=0.9", "optimizer.momentum optimizer=muon"),
    ("train +callbacks.scalar.every_steps=7", "callbacks.scalar callbacks.scalars _target_"),
    ("train model=tyny", "tyny model=tiny"),
    # Keys that would make Hydra do something else than gptmini.
    ("train hydra.run.dir=out", "hydra.run.dir folder= runs_dir= data_dir="),
    ("train ++model._partial_=true", "model _target_"),
    ("train ++callbacks.samples._args_=[1]", "callbacks.samples"),
]
NOTATION = [
    ("train trainer.max_steps=[", "trainer.max_steps=["),
    ("train x%=1", "x%="),
    ("train seed=1,2", "seed=1,2 sweep -m"),
    ("train optimizer.lr='${nowhere}'", "optimizer.lr 'nowhere'"),
    (f"{TINY} data.path='???'", "data.path=VALUE"),
    ("train ~modle", "cannot remove modle"),
    ("train ~seed", "seed=VALUE"),
    ("train ~resume", "resume"),
    ("train +trainer.max_steps=4", "trainer.max_steps=VALUE +"),
    ("train ~logger", "logger=none"),
    ("train trainer=5", "trainer=5 default"),
]
VALUES = [
    ("train model.dropout=1.5", "model.dropout 1 1.5"),
    ("train callbacks.pictures.layers=[9]", "callbacks.pictures.layers -2 1 [9]"),
    ("train model.n_heads=5", "d_model=128 n_heads=5"),
    ("train model.d_model=x model.n_layers=0", "model.d_model 'x' model.n_layers 1 0"),
    ("train num_workers=many", "num_workers 'auto' 'many'"),
    ("train name=a/b", "name 'a/b'"),
    ("train optimizer.lr=inf", "optimizer.lr finite inf"),
    ("train trainer.max_steps=null", "trainer.max_steps integer null"),
    ("train budget=soon", "budget 90s 10m 1h30m 'soon'"),
    ("train trainer.max_time=later", "trainer.max_time 90s 10m 1h30m 1:30:00 'later'"),
    ("train 'freeze=[nothing]'", "freeze=nothing embedding blocks norm unembedding"),
    ("train experiment=smoke trainer.batch_size=3", "trainer.batch_size 4 3 trainer.batch_size=2"),
    ("train experiment=smoke trainer.devices=3", "trainer.global_batch_size=6 devices"),
    ("train trainer.device=cuda", "device=cuda auto"),
    ("train trainer.num_nodes=2", "torchrun srun docs/scaling.md trainer.num_nodes=2"),
    ("prepare data=mixture", "data.sources=VALUE"),
]
PARTS = [
    ("train +callbacks.mine._target_=no.such", "callbacks.mine no.such"),
    ("train +callbacks.mine._target_=os.system", "callbacks.mine os.system"),
    ("train +callbacks.mine=7", "callbacks.mine _target_ 7"),
    (f"train '+callbacks.mine={{{STOP}, every: 1}}'", "callbacks.mine 'every'"),
    (
        f"train '+callbacks.mine={{{STOP}, monitor: x, mode: up}}'",
        "callbacks.mine `mode` min, max up",
    ),
    (f"{TINY} data.path=my.txt +callbacks.mine._target_=odd_callback.Kept", "Kept checkpoint"),
]
PLACES = [
    ("train resume=nowhere", "nowhere runs/latest .ckpt"),
    ("train resume=", "runs/latest"),
    ("train init_from=absent.ckpt", "absent.ckpt"),
    ("train init_from=my.txt", "my.txt checkpoint"),
    ("train folder=my.txt", "my.txt"),
    ("train folder=mine", "folder=mine a.safetensors"),
    ("train resume=runs/latest folder=x", "resume= folder="),
    ("prepare resume=x", "prepare resume=x"),
    (f"{TINY} data.path=absent", "data.path absent"),
    (f"{TINY} data.path=empty.txt", "empty.txt"),
    (f"{TINY} data.path=latin.txt", "latin.txt UTF-8 0xe9 3 data.encoding"),
    (f"{TINY} data.path=short.txt", "model.context_length 4 8"),
    (f"{TINY} data.path=my.txt data_dir=my.txt", "my.txt"),
]
RUNS = [
    ("sample absent", "absent runs/latest .ckpt"),
    ("sample my.txt", "my.txt checkpoint"),
    ("sample my.txt --temperature -1", "temperature 0 -1"),
    ("sample absent --num-samples 0", "--num-samples 1 0"),
    ("sample my.txt --device gpu", "device=gpu auto"),
    ("sample absent --temprature 1", "--temprature --temperature"),
    ("sample absent --logprobs", "--logprobs --format jsonl"),
    ("sample absent --prompt-file ''", "--prompt-file"),
    ("sample my.txt --prompts empty.txt", "empty.txt prompt"),
    ("sample my.txt --prompts latin.txt", "latin.txt UTF-8"),
    ("sample my.txt --prompts bad.jsonl", "bad.jsonl 2 JSON"),
    ("sample my.txt --prompts list.jsonl", "list.jsonl 1 prompt"),
    ("evaluate a b", "--compare 2"),
    ("evaluate --compare a", "--compare 1"),
    ("evaluate absent --text a --split val", "--split --text"),
    ("export absent out --dtype q8_0", "q8_0 .gguf out"),
    ("export absent out.gguf --as gpt2", "--as .gguf"),
    ("export my.txt mine", "mine empty"),
    ("export my.txt mine/m.GGUF", "mine/m.GGUF exists"),
    ("import ./absent out", "./absent"),
    ("import mine out", "mine config.json model.safetensors tokenizer.json"),
    ("import mine/a.safetensors out", "mine/a.safetensors folder"),
    ("import mine out --meta m", "--meta ckpt.pt mine"),
    ("import no-such/model out", "no-such/model"),
    ("report", "--compare run"),
    ("report a --compare b", "--compare run"),
    ("report a --out none/page.html", "--out none/page.html"),
    ("report a --out mine", "--out mine"),
    ("report --compare a b --csv", "--csv --compare"),
    ("runs absent", "absent train runs_dir="),
    ("runs --sort time", "--sort begun loss time"),
    ("sample absent prompt=Hi", "prompt=Hi --prompt"),
    ("sample absent --temperature hot", "--temperature number hot"),
    ("sample absent --prompt Hi --interactive", "--prompt --interactive"),
]
RATES = "optimizer.lr=0.01,0.03"
SWEEPS = [
    ("sweep seed=1", "optimizer.lr=0.01,0.02 sweep=NAME"),
    (f"sweep {RATES} optimizer.lrr=0.1,0.2", "optimizer.lrr optimizer.lr"),
    ("sweep model.n_heads=2,5", "d_model=128 n_heads=5"),
    (f"sweep {RATES} sweep=nope", "sweep default muon_lr nope"),
    (f"sweep {RATES} sweep.trials=0", "sweep.trials 0"),
    (f"sweep {RATES} --jobs 0", "--jobs 1 0"),
    (f"sweep {RATES} --multirun", "--multirun"),
    (f"sweep {RATES} jobs=2", "jobs --help"),
    (f"sweep {RATES} --trials 3", "--trials sweep.trials=3"),
    (f"sweep {RATES} folder=runs/x", "folder= runs_dir= name="),
    (f"sweep {RATES} name=a,b", "name"),
    (f"sweep {RATES} hydra/launcher=joblib", "hydra/launcher=joblib -m --jobs"),
    (f"sweep {RATES} sweep.params.seed=3", "sweep.params optimizer.lr=0.1,0.2"),
    (f"sweep {RATES} callbacks.scalars=null", "callbacks.scalars"),
    ("sweep 'optimizer=glob(*)'", "optimizer=glob(*) optimizer=a,b"),
    ("sweep 'optimizer.lr=tag(lgo,interval(0.1,1))'", "optimizer.lr log lgo"),
    (f"sweep {RATES} experiment=smoke data=text data.path=empty.txt", "empty.txt"),
]
SLIPS = [
    # Keys as options.
    ("train --lr 0.1", "optimizer.lr=0.1"),
    ("train --epoch 3", "epochs=3"),
    ("train --steps 100", "trainer.max_steps=100"),
    ("train --gpu", "trainer.device=cuda"),
    ("train --sweep 3", "--sweep --help"),
    ("train -n 100", "-n --help"),
    ("prepare my.txt --dry-run", "--dry-run"),
    ("train --data my.txt", "data=text data.path=my.txt"),
    ("sweep --jobs 2 --learning-rate 0.1,0.2", "optimizer.lr=0.1,0.2"),
    # Keys by another name.
    ("train epoch=3", "epochs"),
    ("train lr=0.1", "optimizer.lr"),
    ("train block_size=64", "model.context_length"),
    ("train trainer.lr=0.1", "optimizer.lr"),
    ("train trainer.epochs=2", "mean epochs?"),
    ("train my.txt wandb_log=True", "logger=wandb"),
    ("train my.txt --early-stopping", "callbacks=early_stopping"),
    # Texts and runs.
    ("train data=dna.txt", "data.path=dna.txt"),
    ("my.txt", "gptmini train my.txt"),
    ("train my.tx", "my.txt"),
    ("train my file.txt", "'my' spaces"),
    ("train my.txt data=pydoc", "my.txt data=pydoc"),
    ("train my.txt data.path=dna.txt", "my.txt data.path=dna.txt"),
    ("train program", "program UTF-8 0x00 data.encoding"),
    ("sample", "runs/latest"),
    ("train tokenizr.path=x", "tokenizr.path tokenizer.path"),
    # Options of groups.
    ("train tiny", "model=tiny"),
    ("train optimizer=adam", "optimizer=adamw"),
    ("train model", "model=NAME"),
    ("train experiment=wide", "experiment/wide.yaml --config-dir"),
    # Spaces, and values.
    ("train data.path = my.txt", "data.path = my.txt KEY=VALUE"),
    ("train seed =3", "seed =3 KEY=VALUE"),
    ("prepare tokenizer.vocab_size= 300", "tokenizer.vocab_size= 300 KEY=VALUE"),
    ("train my.txt freeze=[embedding, norm]", "norm] 'key=[a, b]'"),
    ("train epochs=2 budget=10m", "epochs= budget="),
    ("sweep epochs=2 trainer.max_steps=4,5", "epochs= trainer.max_steps="),
]
OF_A_RUN = [
    ("train --resume runs/dna", "resume=runs/dna"),
    ("train runs/dna/1", "resume=runs/dna/1 init_from=runs/dna/1"),
    ("sample dna", "runs/dna"),
    ("train resume=runs/dba", "runs/dna"),
    ("sample runs/dna Hi", "--prompt Hi"),
    ("sample runs/dna 'Once upon' a --seed 3", "--prompt 'Once upon a'"),
    ("chat runs/dna 'Who is it?'", "echo 'Who is it?' | gptmini chat"),
    ("chat runs/dna --ra", "--ra --raw"),
    ("sample runs/dna --temp 0", "--temp --temperature"),
    ("export runs/dna model.onnx", ".onnx .gguf model.onnx"),
]
MISTAKES = [*PROGRAM, *KEYS, *NOTATION, *VALUES, *PARTS, *PLACES, *RUNS, *SWEEPS, *SLIPS]


@pytest.fixture
def refused(script, tmp_path, monkeypatch, capsys):
    """The error line of a command line. The working folder has texts and, if `runs` is there already, a run."""
    (tmp_path / "empty.txt").touch()
    (tmp_path / "letter.txt").write_text("a")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1") * 99)
    (tmp_path / "short.txt").write_text("x" * 40)
    for name in ("dna.txt", "my file.txt"):
        (tmp_path / name).write_text("acgt" * 100)
    # The first bytes of a Linux program.
    (tmp_path / "program").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00\x01")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (tmp_path / "list.jsonl").write_text('["a"]\n')
    (tmp_path / "odd_callback.py").write_text(
        "import lightning\n"
        "class Kept(lightning.Callback):\n"
        "    def state_dict(self):\n"
        "        return {'kept': [range(2)]}\n"
    )
    (tmp_path / "mine").mkdir()
    for name in ("m.GGUF", "a.safetensors"):
        (tmp_path / "mine" / name).touch()
    # The program adds a module finder for the working folder.
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    # No server answers on this port.
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")

    def run(typed):
        before = snapshot(tmp_path / "runs")
        monkeypatch.setattr(sys, "argv", ["gptmini", *shlex.split(typed)])
        with pytest.raises(SystemExit) as end:
            main()
        err = capsys.readouterr().err
        assert end.value.code == 2
        assert err.startswith("error: ")
        assert err.count("\n") == 1, err
        assert snapshot(tmp_path / "runs") == before
        assert (tmp_path / "runs").exists() == bool(before)
        assert not (tmp_path / "out").exists()
        return err.removeprefix("error: ")

    return run


def assert_names(line, words):
    """Assert that a line has all these words, each as a separate word. The sentence around them is free."""
    for word in words.split():
        end = "" if word.endswith(("/", "=")) else r"(?!\w)"
        assert re.search(rf"(?<!\w){re.escape(word)}{end}", line), (word, line)


@pytest.mark.parametrize(("typed", "words"), MISTAKES, ids=[typed[:60] for typed, _ in MISTAKES])
def test_a_mistake_is_one_line(refused, typed, words):
    if "=cuda" in typed and torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    if typed.startswith("sweep"):
        pytest.importorskip("optuna")
    assert_names(refused(typed), words)


@pytest.fixture
def a_run(script, tmp_path):
    """Make the run runs/dna/1."""
    (tmp_path / "runs" / "dna" / "1").mkdir(parents=True)
    (tmp_path / "runs" / "dna" / "1" / "config.yaml").write_text("version: 0.3.0\ntyped: []\n")


@pytest.mark.usefixtures("a_run")
@pytest.mark.parametrize(("typed", "words"), OF_A_RUN)
def test_a_mistake_near_a_run_names_the_run(refused, typed, words):
    assert_names(refused(typed), words)


def test_a_name_that_is_not_on_the_hub_means_a_run(a_run, refused, monkeypatch):
    def refuse(name):
        raise gptmini.UserError(f"the hub does not have {name}")

    monkeypatch.setattr("gptmini.interop.hub_models.download_model", refuse)
    assert "runs/dna" in refused("train init_from=dna")
    assert "the hub does not have theirs/dna" in refused("train init_from=theirs/dna")


TUNE = f"{TINY} data.path=my.txt init_from=runs/latest"
TEXT = "evaluate runs/latest --text"
# Command lines with a run runs/latest that has trained four steps of experiment=smoke on bytes.
OF_RUN = [
    (f"{TUNE} model.n_layers=3", "model.n_layers 1 3 dropout context_length"),
    (f"{TUNE} model=gpt2", "model.norm rmsnorm layernorm"),
    (f"{TUNE} model.context_length=9", "model.context_length 8 9"),
    (f"{TUNE} model.dropout=2", "model.dropout 1 2"),
    (f"{TUNE} tokenizer=bpe", "tokenizer=of_model tokenizer.path=runs/smoke/"),
    (f"{TUNE} freeze=[embeding]", "embeding embedding"),
    ("train -m init_from=runs/latest seed=1,2", "init_from=runs/latest latest"),
    (
        "train resume=runs/latest init_from=runs/latest",
        "init_from=runs/latest init_from=runs/smoke/",
    ),
    ("train resume=runs/latest optimizer.lr=1", "optimizer.lr=1 init_from=runs/smoke/"),
    ("train resume=runs/latest seed=2 --cfg job", "seed=2 init_from=runs/smoke/"),
    ("train resume=runs/latest ~callbacks.scalars", "~callbacks.scalars init_from=runs/smoke/"),
    ("train resume=runs/latest 'trainer={max_steps:9}'", "trainer={max_steps:9} init_from=runs/"),
    ("train resume=runs/latest callbacks.scalars._target_=os.system", "callbacks.scalars._target_"),
    ("train resume=runs/latest 'callbacks.pictures={layers:[0]}'", "callbacks.pictures=null"),
    ("train resume=runs/latest trainer.max_steps=3", "trainer.max_steps 4 3"),
    ("train folder=runs/latest/inside", "folder=runs/latest/inside runs/latest"),
    (f"{TEXT} empty.txt", "empty.txt"),
    (f"{TEXT} letter.txt", "letter.txt token"),
    (f"{TEXT} bad.jsonl --field body", "bad.jsonl 1 body --field prompt"),
    (f"{TEXT} latin.txt", "latin.txt UTF-8 0xe9 3"),
    ("export runs/latest out --as gpt2", "gpt2 norm layernorm rmsnorm"),
    ("report my.txt", "my.txt config.yaml"),
    ("report --compare runs/smoke runs/latest", "runs/smoke/ compare"),
]


@pytest.mark.parametrize(("typed", "words"), OF_RUN, ids=[typed[:60] for typed, _ in OF_RUN])
@pytest.mark.usefixtures("trained")
def test_a_mistake_about_a_run_is_one_line_and_changes_nothing(refused, typed, words):
    line = refused(typed)
    assert_names(line, words)
    # The file was given with --text, so the error must not mention a key.
    assert not typed.startswith(TEXT) or "data." not in line


GLOBAL = "# @package _global_\n"
CHANGED = "defaults: [modern, _self_]\n"
FEWER = "defaults: [override /callbacks: none]\ncallbacks: {scalars: {every_steps: 5}}"
# The content of a user's own option file, and words of the error line.
FILES = [
    ("experiment", "seed: 5", "experiment # @package _global_"),
    ("experiment", GLOBAL + "lr: 0.5", "lr optimizer.lr"),
    ("experiment", GLOBAL + "optimzer: {lr: 1}", "optimzer optimizer"),
    ("experiment", GLOBAL + "trainer.max_steps: 5", "trainer.max_steps trainer: {max_steps: ...}"),
    ("experiment", GLOBAL + "optimizer: adamw", "optimizer 'adamw' optimizer=NAME"),
    ("experiment", GLOBAL + "model: {dropout: 1.5}", "model.dropout 1 1.5"),
    ("experiment", GLOBAL + "defaults: [override /model: tyny]", "tyny model=tiny"),
    ("experiment", GLOBAL + FEWER, "callbacks.scalars callbacks=default callbacks=smoke"),
    ("experiment", GLOBAL + "seed: [", "mine/experiment/option.yaml 2"),
    ("model", CHANGED + "d_modl: 32", "model.d_modl model.d_model"),
    ("model", "d_model: 32", "model _target_"),
    ("model", "d_model: !!python/name:os.system", "mine/model/option.yaml 1 os.system"),
    ("tokenizer", "defaults: [bpe, _self_]\nsize: 3", "tokenizer.size tokenizer.vocab_size"),
]


@pytest.mark.parametrize(("group", "content", "words"), FILES)
def test_a_mistake_in_a_file_of_ones_own_is_one_line(refused, tmp_path, group, content, words):
    file = tmp_path / "mine" / group / "option.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert_names(refused(f"train --config-dir mine {group}=option"), words)


def test_what_the_first_validation_shows_is_one_line_too(script, short):
    typed = f"+callbacks.mine={{{STOP}, monitor: loss}}"
    script("train", *short, typed).assert_refused("metric `loss` which is not available")


@pytest.mark.parametrize("name", ["samples", "mine"])
def test_a_prompt_that_the_text_does_not_allow_is_told_with_its_key_before_a_run_has_a_folder(
    script, short, tmp_path, name
):
    own = "{_target_: gptmini.training.Samples, prompts: ['é'], seed: 1, max_new_tokens: 2}"
    typed = ["callbacks.samples.prompts=['é']"] if name == "samples" else [f"+callbacks.mine={own}"]
    result = script("train", *short, "tokenizer=char", *typed)
    result.assert_refused(f"callbacks.{name}.prompts", "'é' (U+00E9) at position 0")
    assert not (tmp_path / "runs").exists()


IN_PYTHON = [
    *(["trainer.max_stepz=4"], ["model=tyny"], ["model.dropout=1.5"], ["trainer.max_steps=["]),
    ["data=text", "data.path=absent.txt"],
]


@pytest.mark.parametrize("overrides", IN_PYTHON, ids=" ".join)
def test_a_call_from_python_is_refused_in_the_same_sentence(refused, overrides):
    with pytest.raises(gptmini.UserError) as caught:
        gptmini.train(*overrides)
    assert refused(f"train {shlex.join(overrides)}") == f"{caught.value}\n"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("optimizer.lr=1,2", "optimizer.lr=1,2 has several values; use gptmini sweep or -m"),
        ("trainer.devices=2", r"trainer\.devices must be 1 in gptmini\.train, got 2"),
        ("--config-dir", "KEY=VALUE or GROUP=NAME, got '--config-dir'"),
        (7, "KEY=VALUE or GROUP=NAME, got 7"),
    ],
)
def test_what_only_the_command_line_takes_is_refused_in_python(script, short, typed, said):
    with pytest.raises(gptmini.UserError, match=said):
        gptmini.train(*short, typed)


def test_an_error_keeps_its_traceback_where_that_is_asked_for(script, monkeypatch):
    monkeypatch.setenv("GPTMINI_TRACEBACK", "1")
    with pytest.raises(InstantiationException, match="less than 1"):
        script("train", "model.dropout=1.5")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 2, "input or output: Broken pipe"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "the disk: No space left on device"),
        (MemoryError(), 1, "out of memory; lower trainer.batch_size"),
        (ZeroDivisionError(), None, ""),
    ],
)
def test_trouble_is_one_line_and_a_bug_keeps_its_traceback(
    script, short, monkeypatch, error, code, said
):
    def fail(*arguments, **keywords):
        raise error

    monkeypatch.setattr("gptmini.job.train.open_run", fail)
    if code is None:
        with pytest.raises(ZeroDivisionError):
            script("train", *short)
        return

    result = script("train", *short)
    assert result.code == code
    assert result.err.startswith(f"error: {said}")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(("command", "folder"), [("prepare", "data"), ("train", "runs/smoke")])
def test_a_disk_without_locks_is_named_and_gets_no_run(
    script, short, prepared, monkeypatch, command, folder
):
    def fail(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fail)
    result = script(command, *(prepared if command == "prepare" else short))
    result.assert_refused(f"{folder}/", "runs_dir", "data_dir")
    assert not Path("runs").exists()


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
