"""Options, experiments and parts: those of gptmini, those in a folder of the user's own, and those that are typed."""

import re
import shlex
import signal
from pathlib import Path

import pytest
import torch
import yaml

from gptmini.commands.compose import compose
from gptmini.commands.settings import build_part
from gptmini.model import GPT
from gptmini.sweep import SweepSettings
from gptmini.training import Scalars
from run_folders import config_of, last, newest

CONFIGS = Path(__file__).parent.parent.parent / "configs"
OPTIONS = sorted(
    (group.name, option.stem)
    for group in CONFIGS.iterdir()
    if group.is_dir()
    for option in group.glob("*.yaml")
)
# What must be given with an option.
NEEDED = {
    "text": ["data.path=my.txt"],
    "tokens": ["data.path=my.txt"],
    "gpt2_124m": ["data.path=my.txt"],
    "modern_124m": ["data.path=my.txt"],
    "of_model": ["tokenizer.path=runs/latest"],
    "finetune": ["init_from=null", "data.path=my.txt"],
    "hub": ["data.dataset=folder"],
    "mixture": ["data.sources={a: {path: my.txt, weight: 1}}"],
}

GLOBAL = "# @package _global_\n"
WIDE = "defaults: [modern, _self_]\n"
STOP = (
    "{_target_: lightning.pytorch.callbacks.EarlyStopping, "
    "monitor: val/loss, patience: 1, min_delta: 5}"
)
LONG = ("trainer.max_steps=8",)


@pytest.fixture
def write(script, tmp_path):
    """Write a file into mine, a folder of the user's own."""

    def write_file(name, content):
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    return write_file


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_fits_its_class(group, option):
    if group == "sweep":
        config, _ = compose("sweep", [f"sweep={option}"])
        assert isinstance(build_part(config.sweep), SweepSettings)
        return

    config, typed = compose("train", [f"{group}={option}", *NEEDED.get(option, [])])
    assert typed.choices[group] == option
    for part in ("model", "optimizer", "schedule", "trainer", "tokenizer"):
        build_part(config[part])


@pytest.mark.parametrize(
    # nanogpt is the number of parameters that nanoGPT prints of the model that it trains at these sizes.
    ("experiment", "vocab_size", "nanogpt"),
    [
        ("nanogpt_cpu", 65, 0.80e6),
        ("shakespeare_char_cpu", 65, 0.80e6),
        ("shakespeare_char", 65, 10.65e6),
        ("gpt2_124m", 50257, 124.44e6),
    ],
)
def test_experiments_have_nanogpts_sizes(experiment, vocab_size, nanogpt):
    config, _ = compose("train", [f"experiment={experiment}", "data.path=my.txt"])
    with torch.device("meta"):
        model = GPT(build_part(config.model).with_vocab_size(vocab_size))
    assert model.n_parameters == pytest.approx(nanogpt, rel=0.05)


def test_no_callbacks_means_none_in_every_experiment():
    for experiment in (option for group, option in OPTIONS if group == "experiment"):
        overrides = [f"experiment={experiment}", "callbacks=none", "data=text"]
        assert compose("train", overrides)[0].callbacks == {}


# What a file of the user's own holds, which is chosen as an experiment or a model, and what is said of it.
MISTAKES = [
    ("experiment", "lr: 0.5", "lr is no key; the nearest is optimizer.lr"),
    ("experiment", "optimizer: {l: 0.5}", "optimizer.l is no key; the nearest is optimizer.lr"),
    ("experiment", "optimzer: {lr: 0.5}", "optimzer is no key; the nearest is optimizer"),
    (
        "experiment",
        "trainer.max_steps: 5",
        "trainer.max_steps must be written as trainer: {max_steps: ...}",
    ),
    (
        "experiment",
        "optimizer: adamw",
        "optimizer must hold keys of its own, got 'adamw'; optimizer=NAME chooses an option",
    ),
    ("experiment", "model: {dropout: 1.5}", "model.dropout must be less than 1, got 1.5"),
    (
        "experiment",
        "defaults: [override /model: tyny]",
        "model must be one of gpt2, modern, tiny, option, xl, got tyny; the nearest is model=tiny",
    ),
    (
        "experiment",
        "defaults: [override /callbacks: none]\ncallbacks: {scalars: {every_steps: 5}}",
        "callbacks.scalars is no key here; callbacks=default and callbacks=smoke have it",
    ),
    ("experiment", "seed: [", 'mine/experiment/option.yaml", line 2'),
    ("model", WIDE + "d_modl: 32", "model.d_modl is no key; the nearest is model.d_model"),
    ("model", "d_model: 32", "model must name its class under _target_, or begin from an option"),
    ("model", "d_model: !!python/name:os.system", 'mine/model/option.yaml", line 1'),
]


@pytest.mark.parametrize(("group", "content", "said"), MISTAKES)
def test_a_mistake_in_a_file_of_ones_own_is_told(script, write, tmp_path, group, content, said):
    write("model/option.yaml", WIDE)
    write(f"{group}/option.yaml", content if group == "model" else GLOBAL + content)
    if "got tyny" in said:
        said = said.replace("gpt2, modern, tiny, option", "gpt2, modern, option, tiny")

    script("train", "--config-dir", "mine", f"{group}=option").assert_refused(said)
    assert not (tmp_path / "runs").exists()


def test_an_experiment_that_would_change_nothing_is_refused(script, write):
    write("experiment/mine.yaml", "seed: 5\n")
    result = script("train", "--config-dir", "mine", "experiment=mine")
    result.assert_refused("an experiment must begin with the line # @package _global_")


def test_a_mistake_is_found_in_a_file_that_another_file_leads_to(script, write):
    write("experiment/mine.yaml", GLOBAL + "defaults: [override /model: wide]")
    write("model/wide.yaml", WIDE + "d_modl: 32")
    result = script("train", "--config-dir", "mine", "experiment=mine")
    result.assert_refused("model.d_modl is no key; the nearest is model.d_model")


def test_prepare_checks_the_files_that_it_uses(script, write):
    write("tokenizer/large.yaml", "defaults: [bpe, _self_]\nsize: 300")
    result = script("prepare", "--config-dir", "mine", "tokenizer=large")
    result.assert_refused("tokenizer.size is no key; the nearest is tokenizer.vocab_size")


def test_all_that_is_no_mistake_is_composed(write):
    write("model/wide.yaml", WIDE + "d_model: 32")
    write("optimizer/own.yaml", "_target_: my.Lion\nrate: 3\nmore: {deep: 1}")
    write("tokenizer/large.yaml", "defaults: [bpe, _self_]\nvocab_size: 9")
    write("callbacks/careful.yaml", f"defaults: [default, _self_]\nstop: {STOP}\nsamples: null")
    write("common/base.yaml", "seed: 7")
    write("callbacks/broken.yaml", "a: [")  # a file that no run uses breaks none
    write(
        "experiment/mine.yaml",
        f"{GLOBAL}defaults:\n  - smoke\n  - /common/base@_global_\n"
        "  - override /model: wide\n  - override /optimizer: own\n"
        "  - override /tokenizer: large\n  - override /callbacks: careful\n"
        "trainer: {max_steps: '${seed}'}\noptimizer: {rate: 4}\n"
        "callbacks: {stop: {patience: 9}, pictures: null}\n"
        "logger: {more: {_target_: lightning.pytorch.loggers.CSVLogger, save_dir: csv}}\n",
    )
    config, _ = compose("train", ["experiment=mine"], "mine")
    assert (config.seed, config.trainer.max_steps, config.model.d_model) == (7, 7, 16)
    assert (config.optimizer.rate, config.optimizer.more.deep) == (4, 1)
    assert (config.callbacks.stop.patience, config.callbacks.pictures) == (9, None)
    assert config.tokenizer.vocab_size == 9
    assert config.logger.more.save_dir == "csv"


def test_a_class_in_the_working_folder_is_found(script, short, tmp_path):
    (tmp_path / "own_callback.py").write_text(
        "import lightning as L\n"
        "class Counter(L.Callback):\n"
        "    def __init__(self, every): self.every = every\n"
        "    def on_train_end(self, trainer, module): print('counted', self.every)\n"
    )
    part = "+callbacks.mine={_target_: own_callback.Counter, every: 7}"
    result = script("train", *short, part)
    assert result.code == 0, result.err
    assert "counted 7\n" in result.out


@pytest.fixture
def stopped(script, short, once):
    """A run of eight steps that early stopping ended at the fourth, when its loss had not fallen by 5 nats."""
    overrides = (*short, *LONG, f"+callbacks.stop={STOP}", "name=stopped")
    result = once("stopped early", lambda: script("train", *overrides)).result
    assert result.code == 0, result.err
    return result


def edit_config(change):
    """Change the configuration that the newest run keeps; returns its path."""
    path = newest() / "config.yaml"
    config = config_of(newest())
    change(config)
    path.write_text(yaml.safe_dump(config))
    return path


def test_early_stopping_ends_a_run_as_its_end_and_says_so_in_one_line(stopped):
    said = re.search(r"^early    at step 4 of 8: (.+)$", stopped.out, re.MULTILINE)
    assert "val/loss did not improve in the last 1 records" in said[1]
    assert re.search(r"^best     val loss \d\.\d{4}, ", stopped.out, re.MULTILINE)

    said = re.search(r"^         to go on: gptmini train (.+)$", stopped.out, re.MULTILINE)
    expected = [f"resume={newest().relative_to(Path.cwd())}", f"+callbacks.stop={STOP}"]
    assert shlex.split(said[1]) == expected
    assert last(newest())["global_step"] == 4


def test_what_early_stopping_ended_goes_on_to_the_weights_of_a_run_without_it(
    script, short, stopped
):
    folder = newest()
    assert script("train", "resume=runs/latest", "+callbacks.stop=null").code == 0
    assert script("train", *short, *LONG, "name=straight").code == 0

    straight = last(newest())
    resumed = last(folder)
    assert resumed["global_step"] == straight["global_step"] == 8
    for name, weight in straight["state_dict"].items():
        assert torch.equal(resumed["state_dict"][name], weight)
    assert config_of(folder)["callbacks"]["stop"] is None


def test_a_callback_of_a_run_folder_is_called_only_if_it_is_typed_again(script, stopped):
    script("train", "resume=runs/latest").assert_refused(
        "names lightning.pytorch.callbacks.EarlyStopping for callbacks.stop, ",
        "if it is yours, type +callbacks.stop=... or its --config-dir again",
    )
    assert last(newest())["global_step"] == 4

    # The callback remembers that it has waited, and ends the run again.
    typed = script("train", "resume=runs/latest", f"+callbacks.stop={STOP}")
    assert typed.code == 0
    assert "early    at step 6 of 8: " in typed.out
    assert last(newest())["global_step"] == 6


def test_nothing_of_what_a_file_says_is_left_in_a_part_that_is_typed_again(script, stopped):
    more = {"_target_": "os.mkdir", "path": "executed"}
    edit_config(lambda config: config["callbacks"]["stop"].update(more=more))

    assert script("train", "resume=runs/latest", f"+callbacks.stop={STOP}").code == 0
    assert not Path("executed").exists()


@pytest.mark.parametrize("group", ["callbacks", "logger"])
def test_a_key_that_looks_like_one_of_a_part_that_is_typed_is_refused(script, stopped, group):
    parts = {"stop": {"_target_": "x"}, "stop.evil": {"_target_": "os.mkdir", "path": "executed"}}
    edit_config(lambda config: config[group].update(parts))
    typed = {"+callbacks.stop=null", f"+{group}.stop=null"}

    result = script("train", "resume=runs/latest", *typed)
    result.assert_refused("must have names without dots for keys, got 'stop.evil'")
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    "value", ["${oc.env:SECRET}", "\\\\${oc.env:SECRET}", "a ${oc.env:SECRET}"]
)
def test_a_run_folder_does_not_read_the_environment(script, stopped, monkeypatch, value):
    monkeypatch.setenv("SECRET", "precious")
    path = edit_config(lambda config: config["callbacks"]["samples"].update(prompts=[value]))

    result = script("train", "resume=runs/latest", "+callbacks.stop=null")
    result.assert_refused("must hold plain values")
    assert "precious" not in path.read_text() + result.err


def test_a_stop_before_a_validation_does_not_hide_it_from_early_stopping(
    script, short, monkeypatch
):
    patient = f"+callbacks.stop={STOP.replace('patience: 1', 'patience: 2')}"
    before = Scalars.on_train_batch_end

    def stopping(self, trainer, *rest):
        before(self, trainer, *rest)
        if trainer.global_step == 4:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Scalars, "on_train_batch_end", stopping)
        assert script("train", *short, *LONG, patient).code == 143

    # Without the stop, the second validation in vain is at step 6 too.
    resumed = script("train", "resume=runs/latest", patient)
    assert "early    at step 6 of 8: " in resumed.out
    assert last(newest())["global_step"] == 6


def test_lightnings_own_checkpoints_are_written_where_and_as_they_say(script, short):
    keys = (
        "_target_=lightning.pytorch.callbacks.ModelCheckpoint",
        "dirpath=a/b/c",
        "monitor=val/bits_per_byte",
        "filename=lightnings",
        "save_weights_only=true",
    )
    result = script("train", *short, *(f"+callbacks.more.{key}" for key in keys))
    assert result.code == 0, result.err

    weights = torch.load("a/b/c/lightnings.ckpt", weights_only=True)["state_dict"]
    for name, weight in last(newest())["state_dict"].items():
        assert torch.equal(weight, weights[name]), name


def test_a_callback_that_keeps_more_than_its_state_is_refused_when_a_run_goes_on(script, short):
    average = "+callbacks.average={_target_: lightning.pytorch.callbacks.WeightAveraging}"
    assert script("train", *short, average).code == 0

    result = script("train", "resume=runs/latest", average, "trainer.max_steps=6")
    result.assert_refused("WeightAveraging cannot go on: it keeps more than its state_dict")


def test_a_callback_whose_state_is_more_than_plain_values_is_refused(script, short, tmp_path):
    (tmp_path / "odd_callback.py").write_text(
        "import lightning as L\n"
        "class Kept(L.Callback):\n"
        "    def state_dict(self):\n"
        "        return {'kept': [range(2)]}\n"
    )
    result = script("train", *short, "+callbacks.odd._target_=odd_callback.Kept")
    result.assert_refused("Kept keeps in its state what a checkpoint cannot hold")
    assert not (tmp_path / "runs").exists()


def test_early_stopping_on_what_is_not_measured_is_told_in_one_line(script, short):
    result = script("train", *short, f"+callbacks.stop={STOP.replace('val/loss', 'loss')}")
    result.assert_refused("metric `loss` which is not available", "`val/loss`")


def test_a_folder_of_ones_own_adds_options_and_its_parts_survive_a_resume(script, short, write):
    write("callbacks/careful.yaml", f"defaults: [smoke, _self_]\nstop: {STOP}\n")
    write(
        "experiment/mine.yaml",
        f"{GLOBAL}defaults:\n  - smoke\n  - override /callbacks: careful\n"
        "name: mine\nseed: 5\n"
        "logger:\n  more:\n    _target_: lightning.pytorch.loggers.CSVLogger\n    save_dir: csv\n",
    )
    folder = ("--config-dir", "mine")

    # The command that is printed after a stop names the folder too.
    limited = ("experiment=mine", "trainer.max_time=0.001")
    stopped = script("train", *folder, *short, *LONG, *limited)
    assert re.search(r"\nnext .* resume=\S+ --config-dir mine\n", stopped.out), stopped.out
    assert newest().parent.name == "mine"
    config = config_of(newest())
    assert (config["seed"], config["callbacks"]["scalars"]["every_steps"]) == (5, 1)

    unlimited = ("resume=runs/latest", "trainer.max_time=null")
    assert script("train", *unlimited).code == 2
    resumed = script("train", *folder, *unlimited)
    assert "early    at step 4 of 8: " in resumed.out

    # Without the file that names the class of the callback, the run cannot go on.
    write("callbacks/careful.yaml", "a: [")
    script("train", *folder, "resume=runs/latest").assert_refused("mine/callbacks/careful.yaml")


def test_a_part_that_was_added_with_two_signs_is_typed_again(script, short):
    # Its argument is a mapping with numbers for keys.
    scheduler = "lightning.pytorch.callbacks.GradientAccumulationScheduler"
    added = f"++callbacks.mine={{_target_: {scheduler}, scheduling: {{0: 1}}}}"
    result = script("train", *short, *LONG, added, "trainer.max_time=0.001")
    (arguments,) = re.findall(r"\nnext +gptmini train (.*)\n", result.out)
    resumed = script("train", *shlex.split(arguments), "trainer.max_time=null")
    assert resumed.code == 0, resumed.err


@pytest.mark.parametrize("left_out", ["callbacks=none", "callbacks.checkpoints=null"])
def test_a_run_that_keeps_no_model_says_so_and_names_no_command_that_needs_it(
    script, watched, left_out
):
    result = script("train", *watched, left_out)
    assert result.code == 0, result.err
    assert not list((newest() / "checkpoints").glob("*.ckpt"))
    assert "\nmodel    not kept, for want of callbacks.checkpoints\n" in result.out
    assert re.search(r"\nnext     gptmini report \S+\n$", result.out), result.out
