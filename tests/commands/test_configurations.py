"""Options, experiments and components: gptmini's own, the user's, and those on the command line."""

import copy
import pickle
import re
import shlex
from pathlib import Path

import pytest
import torch

from gptmini.configuration.building import build_component, build_settings
from gptmini.configuration.compose import compose
from gptmini.model import GPT
from gptmini.sweep import SweepSettings
from gptmini.training.assembling import hardware_of
from gptmini.training.settings import Component
from run_folders import config_of, last, newest

CONFIGS = Path(__file__).parent.parent.parent / "configs"
OPTIONS = sorted(
    (group.name, option.stem)
    for group in CONFIGS.iterdir()
    if group.is_dir()
    for option in group.glob("*.yaml")
)
# Required keys of an option.
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
    """Write a file into mine, the user's own folder."""

    def write_file(name, content):
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    return write_file


@pytest.mark.slow
@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_fits_its_class(group, option):
    if group == "sweep":
        space = compose("sweep", [f"sweep={option}"]).plain()["sweep"]
        assert isinstance(build_component(Component("sweep", space)), SweepSettings)
        return

    chosen = [f"{group}={option}", *NEEDED.get(option, [])]
    composition = compose("train", chosen)
    assert composition.request.choices[group] == option
    build_settings(composition.plain())
    if group == "experiment":
        assert compose("train", [*chosen, "callbacks=none", "data=text"])[0].callbacks == {}


@pytest.mark.parametrize("experiment", ["smoke", "finetune"])
def test_settings_can_be_copied_compared_and_printed_and_building_them_changes_nothing(experiment):
    plain = compose("train", [f"experiment={experiment}", *NEEDED.get(experiment, [])]).plain()
    before = copy.deepcopy(plain)
    settings = build_settings(plain)
    again = pickle.loads(pickle.dumps(settings))
    assert (again, repr(again)) == (settings, repr(settings))

    wider = build_settings(plain, {"model.d_model": 8 * plain["model"]["d_model"]})
    assert wider != settings
    assert (wider.model.d_model, wider.root) == (8 * settings.model.d_model, settings.root)
    assert plain == before


@pytest.mark.parametrize(
    # nanogpt is the number of parameters that nanoGPT prints for its model of these sizes.
    ("experiment", "vocab_size", "nanogpt"),
    [
        ("nanogpt_cpu", 65, 0.80e6),
        ("shakespeare_char_cpu", 65, 0.80e6),
        ("shakespeare_char", 65, 10.65e6),
        ("gpt2_124m", 50257, 124.44e6),
    ],
)
def test_experiments_have_nanogpts_sizes(experiment, vocab_size, nanogpt):
    plain = compose("train", [f"experiment={experiment}", "data.path=my.txt"]).plain()
    with torch.device("meta"):
        model = GPT(build_settings(plain).model.with_vocab_size(vocab_size))
    assert model.n_parameters == pytest.approx(nanogpt, rel=0.05)


@pytest.mark.parametrize(
    ("precision", "machine", "is_native", "warns"),
    [
        ("bf16", "x86_64", False, True),
        ("bf16", "x86_64", True, False),
        ("bf16", "aarch64", False, False),  # not measured
        ("auto", "x86_64", False, False),
    ],
)
def test_emulated_bf16_is_followed_by_a_warning(monkeypatch, precision, machine, is_native, warns):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: is_native)
    overrides = [
        "experiment=smoke",
        f"trainer.precision={precision}",
        "trainer.device=cpu",
    ]
    notes = hardware_of(build_settings(compose("train", overrides).plain())).notes
    assert any(f"trainer.precision={precision}" in note for note in notes) == warns


def test_files_of_ones_own_choose_each_other_and_change_values(write):
    write("model/wide.yaml", WIDE + "d_model: 32")
    write("optimizer/own.yaml", "_target_: my.Lion\nrate: 3\nmore: {deep: 1}")
    write("callbacks/careful.yaml", f"defaults: [default, _self_]\nstop: {STOP}\nsamples: null")
    write("common/base.yaml", "seed: 7")
    write("callbacks/broken.yaml", "a: [")  # an unused broken file has no effect
    write(
        "experiment/mine.yaml",
        f"{GLOBAL}defaults:\n  - smoke\n  - /common/base@_global_\n"
        "  - override /model: wide\n  - override /optimizer: own\n"
        "  - override /callbacks: careful\n"
        "trainer: {max_steps: '${seed}'}\noptimizer: {rate: 4}\n"
        "callbacks: {stop: {patience: 9}, pictures: null}\n",
    )
    config, _ = compose("train", ["experiment=mine"], "mine")
    assert (config.seed, config.trainer.max_steps, config.model.d_model) == (7, 7, 16)
    assert (config.optimizer.rate, config.optimizer.more.deep) == (4, 1)
    assert (config.callbacks.stop.patience, config.callbacks.pictures) == (9, None)


# The classes that docs/configuring.md describes. Their file is in the current folder, and imports another file there.
MINE = """
import lightning
import torch

from my_words import TOLD

class Sgd:
    def __init__(self, lr):
        self.lr = lr

    def build(self, model):
        group = {"name": "all", "params": list(model.parameters()), "peak_lr": self.lr}
        return torch.optim.SGD([group], lr=self.lr)

class Falling:
    def __init__(self, warmup_steps): # set by experiment=smoke
        pass

    def __call__(self, step, max_steps):
        return 1 - step / (2 * max_steps)

class Tell(lightning.Callback):
    def __init__(self, every):
        self.every = every

    def on_train_end(self, trainer, module):
        print(TOLD, self.every, [group["lr"] for group in trainer.optimizers[0].param_groups])
"""


def test_an_optimizer_a_schedule_and_a_callback_may_be_classes_of_ones_own(
    script, short, write, tmp_path
):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "my_words.py").write_text("TOLD = 'told every'")
    write("optimizer/sgd.yaml", "_target_: mine.Sgd\nlr: 0.5")
    write("schedule/falling.yaml", "_target_: mine.Falling")
    own = ("--config-dir", "mine", "optimizer=sgd", "schedule=falling")
    result = script("train", *own, *short, "+callbacks.tell={_target_: mine.Tell, every: 7}")
    assert result.code == 0, result.err
    # The factor at the last of four steps, counted from 0.
    assert f"told every 7 [{0.5 * (1 - 3 / 8)}]\n" in result.out


@pytest.fixture
def stopped(script, short, once):
    """Train eight steps. Early stopping ends the run at the fourth, because its loss has not fallen by 5 nats."""
    overrides = (*short, *LONG, f"+callbacks.stop={STOP}", "name=stopped")
    result = once("stopped early", lambda: script("train", *overrides)).result
    assert result.code == 0, result.err
    return result


def test_early_stopping_ends_a_run_as_its_end_and_says_so_in_one_line(stopped):
    said = re.search(r"^early    at step 4 of 8: (.+)$", stopped.out, re.MULTILINE)
    assert "val/loss did not improve in the last 1 records" in said[1]
    assert re.search(r"^best     val loss \d\.\d{4}, ", stopped.out, re.MULTILINE)

    said = re.search(r"^         to continue: gptmini train (.+)$", stopped.out, re.MULTILINE)
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
        "callbacks.stop._target_ to lightning.pytorch.callbacks.EarlyStopping",
        "+callbacks.stop=... or --config-dir",
    )
    assert last(newest())["global_step"] == 4

    # The callback restores its counter, and ends the run again.
    typed = script("train", "resume=runs/latest", f"+callbacks.stop={STOP}")
    assert typed.code == 0
    assert "early    at step 6 of 8: " in typed.out
    assert last(newest())["global_step"] == 6


def test_a_callback_that_keeps_more_than_its_state_is_refused_when_a_run_goes_on(script, short):
    average = "+callbacks.average={_target_: lightning.pytorch.callbacks.WeightAveraging}"
    assert script("train", *short, average).code == 0

    result = script("train", "resume=runs/latest", average, "trainer.max_steps=6")
    result.assert_refused("WeightAveraging cannot resume")


def test_a_folder_of_ones_own_adds_options_and_its_parts_survive_a_resume(script, short, write):
    write("callbacks/careful.yaml", f"defaults: [smoke, _self_]\nstop: {STOP}\n")
    write(
        "experiment/mine.yaml",
        f"{GLOBAL}defaults:\n  - smoke\n  - override /callbacks: careful\n"
        "name: mine\nseed: 5\n"
        "logger:\n  more:\n    _target_: lightning.pytorch.loggers.CSVLogger\n    save_dir: csv\n",
    )
    folder = ("--config-dir", "mine")

    # The command printed after a stop includes --config-dir.
    limited = ("experiment=mine", "trainer.max_time=0.001")
    stopped = script("train", *folder, *short, *LONG, *limited)
    assert re.search(r"\nnext .* resume=\S+ --config-dir mine\n", stopped.out), stopped.out
    assert newest().parent.name == "mine"
    config = config_of(newest())
    assert (config["seed"], config["callbacks"]["scalars"]["every_steps"]) == (5, 1)

    unlimited = ("resume=runs/latest", "trainer.max_time=null")
    assert script("train", *unlimited).code == 2
    resumed = script("train", *folder, *unlimited)
    # Lightning's EarlyStopping counts the validation of step 1 at the time limit, and that of step 2.
    assert "early    at step 2 of 8: " in resumed.out

    # Without the file that defines the callback's class, the run cannot be resumed.
    write("callbacks/careful.yaml", "a: [")
    script("train", *folder, "resume=runs/latest").assert_refused("mine/callbacks/careful.yaml")


def test_a_run_that_keeps_no_model_says_so_and_names_no_command_that_needs_it(script, watched):
    result = script("train", *watched, "callbacks=none")
    assert result.code == 0, result.err
    assert not list((newest() / "checkpoints").glob("*.ckpt"))
    assert "\nmodel    not saved: callbacks.checkpoints is off\n" in result.out
    assert re.search(r"\nnext     gptmini report \S+\nmore ", result.out), result.out
