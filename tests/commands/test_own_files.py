"""A folder of the user's own: a mistake in a file of it is told in one line, which names the file and the remedy."""

import pytest

from gptmini.commands.configuration import CONFIGS
from gptmini.commands.jobs import compose_checked
from gptmini.user_error import UserError

GLOBAL = "# @package _global_\n"
STOP = "{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: val/loss}"


@pytest.fixture
def compose(tmp_path, monkeypatch):
    """Compose a configuration for overrides, with a folder mine of given files: contents by path."""
    monkeypatch.chdir(tmp_path)

    def compose_with(files, *overrides, command="train"):
        for name, content in files.items():
            path = tmp_path / "mine" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                content = content.encode()
            path.write_bytes(content)
        return compose_checked(command, list(overrides), "mine")

    return compose_with


# What an experiment of the user's own holds, and what is said of it.
EXPERIMENTS = [
    ("lr: 0.5", "has the key lr ... the nearest is optimizer.lr, written as optimizer: {lr: ...}"),
    (
        "optimizer:\n  l: 0.5",
        "has the key optimizer.l ... the nearest is optimizer.lr, written as optimizer: {lr: ...}",
    ),
    (
        "trainer:\n  max_step: 5",
        "has the key trainer.max_step ... the nearest is trainer.max_steps, "
        "written as trainer: {max_steps: ...}",
    ),
    ("optimzer:\n  lr: 0.5", "has the key optimzer ... the nearest is optimizer"),
    ("sizes: {steps: 5}\ntrainer: {max_steps: '${size.steps}'}", "has the key sizes, "),
    ("seed_: 5", "has the key seed_, which no configuration here has; the nearest is seed"),
    ("zzz: 1", "has the key zzz, which no configuration here has; the command's --help lists them"),
    ("trainer.max_steps: 5", "must write trainer.max_steps as trainer: {max_steps: ...}"),
    (
        "optimizer: adamw",
        "must give optimizer its own keys, got 'adamw'; "
        "to choose an option, list it as defaults: [override /optimizer: adamw]",
    ),
    ("trainer:", "must give trainer its own keys, got None"),
    ("callbacks:", "must give callbacks its own keys, got None; ... [override /callbacks: NAME]"),
    ("experiment: smoke", "must name experiment smoke as defaults: [smoke]"),
    ("callbacks:\n  samples: 7", "must give callbacks.samples its own keys, got 7"),
    (
        "callbacks:\n  sample:\n    seed: 7",
        "has the key callbacks.sample ... the nearest is callbacks.samples ... "
        "a part of your own needs a class, as in callbacks: {sample: {_target_: ...}}",
    ),
    ("callbacks:\n  sampels: null", "has the key callbacks.sampels, ... is callbacks.samples"),
    (
        "hydra:\n  mode: MULTIRUN",
        "must change no part of Hydra but hydra.launcher, ... got hydra.mode",
    ),
    ("null: 3", "must have names for keys, got null"),
    ("seed: {null: 3}", "must have names for keys, got null"),
    ("2020-01-01: 3", "must have names for keys, got 2020-01-01"),
    ("- 3", "must hold keys and values, as in KEY: VALUE, got [3]"),
    ("name", "must hold keys and values, as in KEY: VALUE, got 'name'"),
    ("seed: [", "must be YAML: "),
    (b"name: caf\xe9", "must be UTF-8, got byte 0xe9 at offset 29; convert it first"),
    ("defaults: smoke", "must list its defaults, as in defaults: [NAME, _self_], got 'smoke'"),
    (
        "defaults: [mine]",
        "must not lead back to itself by its defaults, got experiment/mine -> experiment/mine",
    ),
]


@pytest.mark.parametrize(("content", "said"), EXPERIMENTS)
def test_a_mistake_in_an_experiment_is_told_with_the_name_of_the_file(compose, content, said):
    if isinstance(content, str):
        content = content.encode()
    with pytest.raises(UserError) as refused:
        compose({"experiment/mine.yaml": GLOBAL.encode() + content}, "experiment=mine")

    message = " ".join(str(refused.value).split())
    assert message.startswith("mine/experiment/mine.yaml ")
    for phrase in said.split(" ... "):
        assert phrase in message


@pytest.mark.parametrize("first_line", ["", "# mine\n# @package _global_\n", "# @package global\n"])
def test_an_experiment_that_would_change_nothing_is_refused(compose, first_line):
    said = "mine/experiment/mine.yaml must begin with the line # @package _global_"
    with pytest.raises(UserError, match=said):
        compose({"experiment/mine.yaml": f"{first_line}seed: 5\n"}, "experiment=mine")


WIDE = "defaults: [modern, _self_]\n"
OPTIONS = [
    (
        "model/wide.yaml",
        WIDE + "d_modl: 32",
        "has the key model.d_modl, .*; the nearest is model.d_model, written as d_model: ...",
    ),
    ("model/wide.yaml", WIDE + "model: {d_model: 32}", "has the key model.model, "),
    ("model/wide.yaml", "d_model: 32", r"must name a class, _target_, or begin from an option of"),
    (
        "model/wide.yaml",
        "_target_: gptmini.model.GPTConfig\nd_modl: 32",
        "has the key model.d_modl, .*; the nearest is model.d_model",
    ),
    ("model/wide.yaml", "defaults: [round]", "model/wide -> model/round -> model/wide"),
    ("model/wide.yml", WIDE, "must be named wide.yaml"),
]


@pytest.mark.parametrize(("name", "content", "said"), OPTIONS)
def test_a_mistake_in_an_option_is_refused_by_the_name_of_its_file(compose, name, content, said):
    files = {name: content, "model/round.yaml": "defaults: [/model/wide]"}
    with pytest.raises(UserError, match=said) as refused:
        compose(files, "model=wide")
    assert str(refused.value).startswith("mine/model/")


def test_a_mistake_is_found_in_a_file_that_another_file_leads_to(compose):
    files = {
        "experiment/mine.yaml": GLOBAL + "defaults: [override /model: wide]",
        "model/wide.yaml": WIDE + "d_modl: 32",
    }
    for typed in ("mine", "mine.yaml"):
        with pytest.raises(UserError, match=r"^mine/model/wide\.yaml has the key model\.d_modl"):
            compose(files, f"experiment={typed}")


def test_a_file_that_one_of_gptminis_hides_is_refused_unless_it_says_no_more(compose):
    said = "mine/model/tiny.yaml must have another name: gptmini's own model/tiny is used instead"
    with pytest.raises(UserError, match=said):
        compose({"model/tiny.yaml": WIDE + "d_model: 32"})
    # The hidden file matters only to a run that would use it.
    assert compose({}, "model=gpt2").model.n_heads == 12

    copy = (CONFIGS / "model" / "tiny.yaml").read_bytes()
    assert compose({"model/tiny.yaml": copy}).model.d_model == 128


@pytest.mark.parametrize(
    ("mistyped", "group"),
    [("experiments", "experiment"), ("optimiser", "optimizer"), ("models", "model")],
)
def test_a_folder_that_is_nearly_a_group_is_refused(compose, mistyped, group):
    said = f"mine/{mistyped} must have the name of a group; the nearest is {group}"
    with pytest.raises(UserError, match=said):
        compose({f"{mistyped}/mine.yaml": "lr: 1"})


def test_folders_and_files_for_something_else_are_left_alone(compose):
    files = {"logs/mine.yaml": "lr: 1", "notes.yaml": "lr: 1", "models/README.md": "none"}
    assert compose(files).seed == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("callbacks/broken.yaml", "a: ["),
        ("experiment/broken.yaml", b"\xff\xfe"),
        ("callbacks/broken.yaml", "stop: {_target_: !!python/name:os.system }"),
        ("experiment/broken.yaml", "[" * 5000),
    ],
)
def test_a_broken_file_breaks_only_the_run_that_uses_it(compose, name, content):
    # A part that is typed is compared with the parts of all files.
    typed = f"+callbacks.stop={STOP}"
    assert compose({name: content}, typed).callbacks.stop.monitor == "val/loss"

    group = name.partition("/")[0]
    with pytest.raises(UserError, match=rf"^mine/{group}/broken\.yaml "):
        compose({}, typed, f"{group}=broken")


def test_all_that_is_no_mistake_is_composed(compose):
    files = {
        "model/wide.yaml": WIDE + "d_model: 32",
        "optimizer/own.yaml": "_target_: my.Lion\n_partial_: true\nrate: 3\nmore: {deep: 1}",
        "tokenizer/large.yaml": "_target_: gptmini.tokenizer.bpe\n_partial_: true\nvocab_size: 9",
        "callbacks/careful.yaml": f"defaults: [default, _self_]\nstop: {STOP}\nsamples: null",
        "common/base.yaml": "seed: 7",
        "experiment/mine.yaml": (
            f"{GLOBAL}defaults:\n  - smoke\n  - /common/base@_global_\n"
            "  - override /model: wide\n  - override /optimizer: own\n"
            "  - override /tokenizer: large\n  - override /callbacks: careful\n"
            "trainer: {max_steps: '${sizes.steps}'}\noptimizer: {rate: 4}\nsizes: {steps: 5}\n"
            "callbacks: {stop: {patience: 9}, pictures: null}\n"
            "logger: {more: {_target_: lightning.pytorch.loggers.CSVLogger, save_dir: csv}}\n"
            "hydra: {sweeper: {params: {optimizer.rate: '1,2'}}}\n"
        ),
    }
    config = compose(files, "experiment=mine")
    assert (config.seed, config.trainer.max_steps, config.model.d_model) == (7, 5, 16)
    assert (config.optimizer.rate, config.optimizer.more.deep) == (4, 1)
    assert (config.callbacks.stop.patience, config.callbacks.pictures) == (9, None)
    assert config.tokenizer.vocab_size == 9
    assert "csv" in config.logger.more.save_dir


def test_prepare_checks_the_files_that_it_uses(compose):
    large = "_target_: gptmini.tokenizer.bpe\n_partial_: true\nsize: 300"
    with pytest.raises(UserError, match=r"^mine/tokenizer/large\.yaml has the key tokenizer\.size"):
        compose({"tokenizer/large.yaml": large}, "tokenizer=large", command="prepare")
