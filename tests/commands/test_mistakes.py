"""Every mistake ends in one line that names the key, the value and the remedy, with exit code 2, and changes no run.

A sentence of another room than gptmini/commands is held by the tests of that room, and here once for each command.
"""

import errno
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

FULL = Path("/dev/full")  # Linux: every write to it fails as on a full disk
# The tiny run on a text that the row names.
TINY = "train experiment=smoke data=text"
STOP = "_target_: lightning.pytorch.callbacks.EarlyStopping"
STEPS = "trainer.max_stepz is no key; the nearest is trainer.max_steps"

# What a user types after gptmini, and what follows "error: ".
PROGRAM = [
    ("trian", "gptmini has no command trian; it has train, sweep, runs, prepare, sample, "),
    ("train --multirunn", "unrecognized arguments: --multirunn; the nearest is --multirun"),
    ("train --no-such-flag", "--no-such-flag; --help lists what there is"),
    ("train --folder=x", "--folder is no flag, but a key: folder=VALUE"),
    ("help ''", "gptmini has no command ''; it has train, "),
    ("train --experiment smoke", "--experiment is no flag, but a key: experiment=VALUE"),
    ("train --optimizer=muon", "--optimizer is no flag, but a key: optimizer=VALUE"),
    ("train --multi seed=1,2", "--multi; the nearest is --multirun"),
    ("train --experimental-rerun x", "would load pickled code; resume= goes on with a run"),
    ("train --config-dir absent", "--config-dir must be a folder, got absent"),
    ("train --config-path .", "--config-dir adds a folder to them"),
    ("train -m folder=runs/x seed=1,2", "folder=runs/x names one run, and -m asks for several"),
    ("train --cfg hydra resume=x", "--cfg job, without --package, shows the configuration of a"),
]
KEYS = [
    ("train trainer.max_stepz=4", STEPS),
    ("train +trainer.max_stepz=4", STEPS),
    ("train '+trainer={max_stepz: 4}'", STEPS),
    ("train --help trainer.max_stepz", STEPS),
    ("prepare trainer.max_stepz=4", STEPS),
    ("train modle=tiny", "modle is no key; the nearest is model"),
    ("train +foo=1", "foo is no key; --help lists them"),
    (
        "train data.path=my.txt",
        "data.path is no key here; data=shakespeare and data=text and data=tokens have it",
    ),
    (
        "train optimizer=adamw optimizer.momentum=0.9",
        "optimizer.momentum is no key here; optimizer=muon has it",
    ),
    (
        "train +callbacks.scalar.every_steps=7",
        "the nearest is callbacks.scalars; a part of your own must name its class",
    ),
    ("train model=tyny", "got tyny; the nearest is model=tiny"),
    # Keys by which Hydra would do something else than gptmini.
    ("train hydra.run.dir=out", "hydra.run.dir has no effect; set folder=, runs_dir= or data_dir="),
    ("prepare hydra.run.dir=out", "hydra.run.dir has no effect"),
    ("train -m hydra.run.dir=out seed=1,2", "hydra.run.dir has no effect"),
    ("train ++data._partial_=true", "data._partial_ is a key of Hydra's own, got True"),
    ("prepare ++data._partial_=true", "data._partial_ is a key of Hydra's own, got True"),
    ("train +trainer._args_=[1]", "trainer._args_ is a key of Hydra's own, got [1]"),
    ("train ++model._recursive_=false", "model._recursive_ is a key of Hydra's own, got False"),
    ("train ++optimizer.lr_scale._convert_=all", "lr_scale._convert_ is a key of Hydra's own, got"),
    ("train ++callbacks.samples._args_=[1]", "callbacks.samples._args_ is a key of Hydra's own"),
    ("train logger.tensorboard._partial_=10m", "logger.tensorboard._partial_ must be true, got '"),
    ("sweep ++data._partial_=true seed=1,2", "data._partial_ is a key of Hydra's own, got True"),
    (f"train '+callbacks.mine={{{STOP}, _partial_: 10m}}'", "mine._partial_ must be a bool, got "),
]
NOTATION = [
    ("train my.txt", "must be KEY=VALUE, got my.txt; data=text data.path=my.txt chooses it"),
    ("train data.path=[a, b]", "the shell cuts at spaces: a list or a mapping needs quotes"),
    ("train trainer.max_steps=[", "trainer.max_steps=[ is no list or mapping that Hydra can read"),
    ("train x%=1", "cannot be read: a key has letters, digits, dots and underscores"),
    ("train seed=1,2", "seed=1,2 stands for several runs; gptmini sweep"),
    ("train optimizer.lr='${nowhere}'", "optimizer.lr: Interpolation key 'nowhere' not found"),
    (f"{TINY} data.path='???'", "data.path must be given, as in data.path=VALUE"),
    ("train ~seed", "seed must be given, as in seed=VALUE"),
]
VALUES = [
    ("train model.dropout=1.5", "model.dropout must be less than 1, got 1.5"),
    ("train callbacks.pictures.layers=[9]", "callbacks.pictures.layers must be from -2 to 1 in th"),
    ("train model.n_heads=5", "d_model must be a multiple of n_heads, got d_model=128 and n_heads"),
    (
        "train model.d_model=x model.n_layers=0",
        "model.d_model must be a valid integer, got 'x'; model.n_layers must be greater than",
    ),
    ("train num_workers=many", "num_workers must be a valid integer or 'auto', got 'many'"),
    ("train name=a/b", "name must be a plain file name, without a path, got 'a/b'"),
    ("train name=latest", "name must be another name than latest, which leads to the newest run"),
    ("train optimizer.momentum=1e400", "optimizer.momentum=1e400 must be at most 1.8e308"),
    ("train optimizer.betas=[0.9,-1e400]", "optimizer.betas=[0.9,-1e400] must be at most 1.8e308"),
    ("train optimizer.lr=inf", "optimizer.lr must be a finite number, got inf"),
    ("train freeze=7", "freeze must be a valid list or a valid string, got 7"),
    ("train 'freeze=[nothing]'", "freeze=nothing names no weights of this model; its parts are "),
    ("train callbacks.samples.top_k=2.5", "callbacks.samples.top_k must be a valid integer, got"),
    (f"train seed={'9' * 5000}", "Exceeds the limit (4300 digits)"),
    ("train experiment=smoke trainer.batch_size=3", "got 4, 3 and 1; trainer.batch_size=2 fits"),
    ("train experiment=smoke trainer.devices=3", "got 4 and 3; 2 devices or "),
    ("train trainer.device=cuda", "device=cuda is not on this machine; use device=auto"),
    ("train trainer.num_nodes=2", "several machines need torchrun or srun"),
    ("prepare data=mixture", "data.sources must be given"),
    ("prepare data=mixture data.sources=5", "data.sources must be a valid dictionary, got 5"),
    ("prepare verify=1", "verify must be a valid boolean, got 1"),
]
PARTS = [
    ("train +callbacks.mine._target_=no.such", "callbacks.mine cannot be made: Error loading 'no"),
    ("train +callbacks.mine=7", "must name its class under _target_, got 7"),
    (f"train '+callbacks.mine={{{STOP}, every: 1}}'", "callbacks.mine does not fit: "),
    (
        f"train '+callbacks.mine={{{STOP}, monitor: x, mode: up}}'",
        "callbacks.mine cannot be made: `mode` can be min, max, got up",
    ),
    (
        f"{TINY} data.path=my.txt +callbacks.mine._target_=odd_callback.Kept",
        "Kept keeps in its state what a checkpoint cannot hold",
    ),
]
PLACES = [
    ("train resume=nowhere", "nowhere does not exist; give a run folder"),
    ("train resume=", "the name of a run must not be empty"),
    ("train init_from=", "init_from must name a run, a folder or a model, got ''"),
    ("train init_from=absent.ckpt", "absent.ckpt does not exist; give a run folder"),
    ("train init_from=my.txt", "my.txt is not a checkpoint"),
    ("train folder=my.txt", "my.txt"),
    (
        "train folder=mine",
        "folder=mine must be a run, or empty or absent, and it holds a.safetensors",
    ),
    ("train resume=runs/latest folder=x", "resume= names the run to go on with, and folder= that"),
    ("prepare resume=x", "gptmini prepare begins no run and goes on with none, got resume=x"),
    ("prepare budget=10m", "gptmini prepare begins no run and goes on with none, got budget=10m"),
    (f"{TINY} data.path=absent", "data.path must be a file, a folder or a glob that matches, got"),
    (f"{TINY} data.path=empty.txt", "empty.txt must hold text, got none"),
    (f"{TINY} data.path=latin.txt", "latin.txt must be UTF-8, got byte 0xe9 at offset 3, in line"),
    (f"{TINY} data.path=short.txt", "the val split must hold one window of context_length=8 token"),
    (f"{TINY} data.path=my.txt data_dir=my.txt", "my.txt: File exists"),
    (f"{TINY} data.path=my.txt runs_dir=my.txt", "my.txt/smoke: Not a directory"),
]
RUNS = [
    ("sample absent", "absent does not exist; give a run folder"),
    ("sample my.txt", "my.txt is not a checkpoint, or is cut short"),
    ("sample absent --temperature -1", "temperature must be greater than or equal to 0, got -1"),
    ("sample absent --num-samples 0", "--num-samples: must be a whole number of at least 1, got 0"),
    ("sample absent --num-samples x", "--num-samples: must be a whole number of at least 1, got x"),
    ("sample absent --device gpu", "device=gpu is not on this machine; use device=auto"),
    ("sample absent --temprature 1", "--temprature 1; the nearest is --temperature"),
    ("sample absent --logprobs", "--logprobs needs --format jsonl"),
    (
        "sample absent --prompt-file ''",
        "--prompt-file: must be a file or a folder, got an empty na",
    ),
    ("sample absent --prompts absent.txt", "absent.txt: No such file or directory"),
    ("sample absent --prompts empty.txt", "empty.txt must hold at least one prompt, got none"),
    ("sample absent --prompts latin.txt", "latin.txt must be UTF-8"),
    ("sample absent --prompts bad.jsonl", "bad.jsonl, line 2 must be JSON"),
    ("sample absent --prompts list.jsonl", "list.jsonl, line 1 must be an object"),
    ("evaluate absent", "absent does not exist; give a run folder"),
    ("evaluate a b", "--compare is needed to evaluate several runs, got 2"),
    ("evaluate --compare a", "--compare takes two runs, got 1"),
    ("evaluate absent --text a --split val", "--split belongs to a prepared folder"),
    ("evaluate absent --field body", "--field belongs to the files that --text names"),
    ("export absent out", "absent does not exist; give a run folder"),
    ("export absent out --dtype q8_0", "q8_0 needs a name that ends in .gguf"),
    ("export absent out.gguf --as gpt2", "--as chooses the form of a folder"),
    ("export absent mine", "mine must not exist yet, or be an empty folder; delete it"),
    ("export absent mine/m.GGUF", "mine/m.GGUF must not exist yet; delete it"),
    ("import ./absent out", "./absent must be a folder, a file, or a name on the hub"),
    ("import my.txt out", "my.txt is not a checkpoint, or is cut short"),
    ("import mine out", "mine must be a Hugging Face folder (config.json, model.safetensors, tok"),
    ("import mine mine", "mine must not exist yet, or be an empty folder"),
    ("import mine/a.safetensors out", "is read with the files beside it; name its folder"),
    ("import mine out --meta m", "--meta belongs to a ckpt.pt of nanoGPT, got mine"),
    ("import no-such/model out", "could not download the model no-such/model "),
    ("report absent", "absent does not exist; give a run folder"),
    ("report", "name a run, or several after --compare"),
    ("report a --compare b", "name a run, or several after --compare"),
    ("report a --out none/page.html", "in a folder that exists, got none/page.html"),
    ("report a --out mine", "--out must be a file in a folder that exists, got mine"),
    ("report --compare a b --csv", "--csv takes one run, without --compare"),
    ("runs absent", "absent holds no run; gptmini train begins one"),
]
RATES = "optimizer.lr=0.01,0.03"
SWEEPS = [
    ("sweep seed=1", "a sweep must vary something"),
    (f"sweep {RATES} optimizer.lrr=0.1,0.2", "optimizer.lrr is no key; the nearest is optimizer.l"),
    ("sweep optimizer.lr=0.1,fast", "optimizer.lr must be a valid number, got 'fast'"),
    ("sweep model.n_heads=2,5", "d_model must be a multiple of n_heads"),
    (f"sweep {RATES} sweep=nope", "sweep must be one of default, muon_lr, got nope"),
    (f"sweep {RATES} sweep.trails=3", "sweep.trails is no key; the nearest is sweep.trials"),
    (f"sweep {RATES} sweep.trials=0", "sweep.trials must be greater than 0, got 0"),
    (f"sweep {RATES} --jobs 0", "--jobs must be at least 1, got 0"),
    (f"sweep {RATES} --multirun", "unrecognized arguments: --multirun"),
    (f"sweep {RATES} resume=runs/latest", "a sweep goes on when it is typed again"),
    (f"sweep {RATES} folder=runs/x", "folder= is the place of one run"),
    (f"sweep {RATES} name=a,b", "name must be the same for all runs of a sweep"),
    (f"sweep {RATES} callbacks.checkpoints=null", "which callbacks.checkpoints keeps"),
    (f"sweep {RATES} hydra/launcher=joblib", "is for gptmini train -m"),
    (f"sweep {RATES} sweep.params.seed=3", "what is varied is typed by itself"),
    ("sweep 'optimizer=glob(*)'", "must list the options"),
    ("sweep 'optimizer.lr=tag(lgo,interval(0.1,1))'", "the tag of optimizer.lr must be log, got l"),
    ("sweep 'model.n_layers=range(1,9999999)'", "model.n_layers must have at most 1,000 values"),
    (f"sweep {RATES} experiment=smoke data=text data.path=empty.txt", "empty.txt must hold text"),
]
MISTAKES = [*PROGRAM, *KEYS, *NOTATION, *VALUES, *PARTS, *PLACES, *RUNS, *SWEEPS]


@pytest.fixture
def refused(script, tmp_path, monkeypatch, capsys):
    """The line that a command line is refused with; script has written my.txt into the working folder."""
    (tmp_path / "empty.txt").touch()
    (tmp_path / "letter.txt").write_text("a")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1") * 99)
    (tmp_path / "short.txt").write_text("x" * 40)
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
    # The program adds a finder of modules in the working folder.
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    # No port of this machine answers there.
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


@pytest.mark.parametrize(("typed", "said"), MISTAKES, ids=[typed[:60] for typed, _ in MISTAKES])
def test_a_mistake_is_one_line(refused, typed, said):
    if "=cuda" in typed and torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    if typed.startswith("sweep"):
        pytest.importorskip("optuna")
    assert said in refused(typed)


TUNE = f"{TINY} data.path=my.txt init_from=runs/latest"
TEXT = "evaluate runs/latest --text"
# What is typed where runs/latest is a run that has trained four steps of experiment=smoke on bytes.
OF_RUN = [
    (f"{TUNE} model.n_layers=3", "model.n_layers must be 1, as in the model of init_from=runs/smo"),
    (f"{TUNE} model.d_ff=20", "model.d_ff must be None, as in the model of init_from=runs/smoke/"),
    (f"{TUNE} model=gpt2", ", as in the model of init_from=runs/smoke/"),
    (f"{TUNE} model.context_length=9", "model.context_length must be at most 8, as in the model"),
    (f"{TUNE} model.dropout=2", "model.dropout must be less than 1, got 2"),
    (f"{TUNE} tokenizer=bpe", "the tokenizer must be that of the model of init_from=runs/smoke/"),
    (f"{TUNE} freeze=[embeding]", "embeding names no weights of this model; the nearest is embed"),
    ("train -m init_from=runs/latest seed=1,2", "init_from=runs/latest is the newest run, which e"),
    ("train -m init_from=runs/smoke seed=1,2", "init_from=runs/smoke is the newest run, which ea"),
    ("train resume=runs/latest init_from=runs/latest", "would change the past of runs/smoke/"),
    ("train resume=runs/latest optimizer.lr=1", "optimizer.lr=1 would change the past of runs/sm"),
    ("train resume=runs/latest seed=2 --cfg job", "seed=2 would change the past of runs/smoke/"),
    ("train resume=runs/latest model=gpt2", "model=gpt2 would change the past of runs/smoke/"),
    ("train resume=runs/latest ~callbacks.scalars", "~callbacks.scalars would change the past of"),
    ("train resume=runs/latest +trainer.foo=1", "+trainer.foo=1 would change the past of runs/sm"),
    ("train resume=runs/latest 'trainer={max_steps:9}'", "trainer={max_steps:9} would change the"),
    (
        "train resume=runs/latest callbacks.scalars._target_=os.system",
        "callbacks.scalars._target_=os.system would change the past of runs/smoke/",
    ),
    (
        "train resume=runs/latest 'callbacks.pictures={layers:[0]}'",
        "callbacks.pictures can only be turned off in a run that goes on, with callbacks.pictures=",
    ),
    (
        "train resume=runs/latest trainer.max_steps=3",
        "trainer.max_steps must be at least the 4 don",
    ),
    ("train folder=runs/latest/inside", "folder=runs/latest/inside lies in the run "),
    ("evaluate runs/latest --stride 9", "--stride must be at most the context of 8, got 9"),
    (f"{TEXT} absent.txt", "absent.txt"),
    (f"{TEXT} empty.txt", "empty.txt must hold text, got none"),
    (f"{TEXT} letter.txt", "must have text behind its first token, which nothing predicts"),
    (f"{TEXT} bad.jsonl --field body", "bad.jsonl, line 1 "),
    (f"{TEXT} latin.txt", "latin.txt must be UTF-8"),
    ("export runs/latest out --as gpt2", "norm must be layernorm to export as gpt2"),
    ("report my.txt", "belongs to no run"),
    ("report --compare runs/smoke runs/latest", "runs to compare must differ"),
]


@pytest.mark.parametrize(("typed", "said"), OF_RUN, ids=[typed[:60] for typed, _ in OF_RUN])
@pytest.mark.usefixtures("trained")
def test_a_mistake_about_a_run_is_one_line_and_changes_nothing(refused, typed, said):
    line = refused(typed)
    assert said in line
    # A file that --text names has no key.
    assert not typed.startswith(TEXT) or "data." not in line


GLOBAL = "# @package _global_\n"
# What a file of the user's own holds, which is chosen as an option of its group.
FILES = [
    ("experiment", "seed: 5", "an experiment must begin with the line # @package _global_"),
    ("experiment", GLOBAL + "lr: 0.5", "lr is no key; the nearest is optimizer.lr"),
    ("experiment", GLOBAL + "optimzer: {lr: 1}", "optimzer is no key; the nearest is optimizer"),
    (
        "experiment",
        GLOBAL + "trainer.max_steps: 5",
        "trainer.max_steps must be written as trainer: {max_steps: ...}",
    ),
    (
        "experiment",
        GLOBAL + "optimizer: adamw",
        "optimizer must hold keys of its own, got 'adamw'; optimizer=NAME chooses an option",
    ),
    ("experiment", GLOBAL + "model: {dropout: 1.5}", "model.dropout must be less than 1, got 1.5"),
    (
        "experiment",
        GLOBAL + "defaults: [override /model: tyny]",
        "got tyny; the nearest is model=tiny",
    ),
    (
        "experiment",
        GLOBAL + "defaults: [override /callbacks: none]\ncallbacks: {scalars: {every_steps: 5}}",
        "callbacks.scalars is no key here; callbacks=default and callbacks=smoke have it",
    ),
    ("experiment", GLOBAL + "seed: [", 'mine/experiment/option.yaml", line 2'),
    ("model", "defaults: [modern, _self_]\nd_modl: 32", "model.d_modl is no key; the nearest is m"),
    ("model", "d_model: 32", "model must name its class under _target_, or begin from an option"),
    ("model", "d_model: !!python/name:os.system", 'mine/model/option.yaml", line 1'),
    ("model", "defaults: [modern, _self_]\n_args_: [1]", "model._args_ is a key of Hydra's own"),
    ("tokenizer", "defaults: [bpe, _self_]\nsize: 3", "tokenizer.size is no key; the nearest is "),
]


@pytest.mark.parametrize(("group", "content", "said"), FILES)
def test_a_mistake_in_a_file_of_ones_own_is_one_line(refused, tmp_path, group, content, said):
    file = tmp_path / "mine" / group / "option.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert said in refused(f"train --config-dir mine {group}=option")


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
        ("optimizer.lr=1,2", "optimizer.lr=1,2 stands for several runs; gptmini sweep and -m"),
        ("trainer.devices=2", r"trainer\.devices must be 1 in gptmini\.train, got 2"),
        ("--config-dir", "KEY=VALUE or GROUP=NAME, got '--config-dir'"),
        (7, "takes settings as KEY=VALUE or GROUP=NAME, got 7"),
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
        (MemoryError(), 1, "memory ran out; lower trainer.batch_size"),
        (ZeroDivisionError(), None, ""),
    ],
)
def test_trouble_is_one_line_and_a_bug_keeps_its_traceback(
    script, short, monkeypatch, error, code, said
):
    def fail(*arguments, **keywords):
        raise error

    monkeypatch.setattr("gptmini.commands.train.build_settings", fail)
    if code is None:
        with pytest.raises(ZeroDivisionError):
            script("train", *short)
        return

    result = script("train", *short)
    assert result.code == code
    assert result.err.startswith(f"error: {said}")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("command", ["prepare", "train"])
def test_memory_that_a_text_takes_is_told_with_what_a_text_needs_less_of(
    script, short, prepared, monkeypatch, command
):
    def fail(*arguments, **keywords):
        raise MemoryError

    monkeypatch.setattr("gptmini.data.prepare", fail)
    result = script(command, *(prepared if command == "prepare" else short))
    assert result.code == 1
    assert "num_workers" in result.err
    assert "batch_size" not in result.err
    assert result.err.count("\n") == 1


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
