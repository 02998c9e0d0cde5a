"""Runs with init_from=: what comes with the weights, what may change, and what is refused."""

import json
import random
import re
import shutil

import pytest
import torch
import yaml
from optuna.distributions import CategoricalDistribution

import gptmini
from gptmini.checkpoint.file import read_checkpoint
from gptmini.job.sweeping import check_and_prepare
from gptmini.runs import curves_of, read_lines
from gptmini.sweep import Space
from interop.nanogpt_files import write_nanogpt
from run_folders import config_of, last, newest

OTHER = "The other text tells of owls, of rain, and of a road that bends. " * 40


@pytest.fixture
def base(trained, tmp_path):
    """The folder of a trained run. The working folder also has another text."""
    (tmp_path / "other.txt").write_text(OTHER)
    return trained


TUNE = (
    "experiment=smoke",
    "data=text",
    "data.path=other.txt",
    "callbacks.pictures=null",
    "callbacks.samples=null",
)


SHORT_RUN = ("trainer.max_steps=1", "trainer.global_batch_size=2")
SMOKE_SIZES = (
    "model.context_length=8",
    "model.d_model=16",
    "model.n_layers=1",
    "model.n_heads=2",
)


def test_a_run_begins_with_the_weights_and_the_tokenizer_of_another(script, base, tmp_path):
    result = script(
        "train", *TUNE, "init_from=runs/latest", "model.dropout=0.1", "trainer.val_tokens=null"
    )
    assert result.code == 0, result
    best = base / "checkpoints" / "best.ckpt"
    began_with = read_checkpoint(best)
    step = began_with["global_step"]
    path = str(best.relative_to(tmp_path))
    assert f"weights of {path}, step {step}\n" in result.out

    # The loss before the first step equals the model's loss on the new text, from gptmini evaluate.
    folder = next(path.parent for path in (tmp_path / "data").glob("*of_model*/meta.json"))
    validations = dict(curves_of(read_lines(newest()))["val/loss"])
    evaluated = json.loads(script("evaluate", str(best), "--data", str(folder), "--json").out)
    expected = evaluated["models"][0]["loss"]["value"]
    assert validations[0] == pytest.approx(expected, abs=1e-6)

    config = config_of(newest())
    assert config["init_from"] == path
    assert config["model"]["dropout"] == 0.1
    header = last(newest())["gptmini"]
    assert header["init_from"] == {"path": path, "step": step, "optimizer": "MuonSettings"}
    assert header["optimizer"] == "MuonSettings"
    assert header["tokenizer"] == began_with["gptmini"]["tokenizer"]


def test_an_exported_folder_begins_a_run_as_its_run_does(script, base):
    assert script("export", str(base), "out").code == 0
    # The architecture comes from the folder, although experiment=smoke chooses another.
    length = ("trainer.max_steps=4", "trainer.val_every_steps=2", "trainer.global_batch_size=4")
    losses = []
    for source in (str(base), "out"):
        result = script("train", *TUNE[1:], *length, f"init_from={source}", "optimizer=muon")
        assert result.code == 0, result
        losses.append(re.findall(r"val loss (\S+)", result.out))
    assert len(losses[0]) == len(losses[1]) >= 2
    assert losses[0] == losses[1]


def test_an_imported_model_of_another_program_is_tuned(script, tmp_path):
    write_nanogpt(tmp_path, "\n abcde")
    (tmp_path / "other.txt").write_text("abc de\n" * 200)
    script("import", "ckpt.pt", "runs/nano", "--meta", "meta.pkl")
    sizes = ("trainer.max_steps=2", "trainer.global_batch_size=2", "model.context_length=4")
    text = ("data=text", "data.path=other.txt", "optimizer=adamw")
    result = script("train", "init_from=runs/nano", *text, *sizes)
    assert result.code == 0, result
    model, tokenizer = gptmini.load("runs/latest")
    assert (model.config.context_length, tokenizer.n_vocab) == (4, 7)


def test_rotary_weights_keep_their_positions_through_runs_on_shorter_contexts(
    script, base, tmp_path
):
    def exported_positions(name):
        assert script("export", "runs/latest", name).code == 0
        return json.loads((tmp_path / name / "config.json").read_text())["max_position_embeddings"]

    def context_of(folder):
        config = last(folder)["gptmini"]["config"]
        return config["context_length"], config["full_context_length"]

    stopped = ("init_from=runs/latest", "model.context_length=4", "trainer.max_time=1e-9")
    assert script("train", *TUNE, *stopped).code == 0
    shorter = newest()
    assert script("train", f"resume={shorter}", "trainer.max_time=null").code == 0
    assert (context_of(shorter), exported_positions("out")) == ((4, 8), 8)

    # A run that starts with the shorter model has its context, or a longer one up to all positions.
    for lengths, found in [((), (4, 8)), (("model.context_length=8",), (8, None))]:
        result = script("train", *TUNE[1:], *SHORT_RUN, f"init_from={shorter}", *lengths)
        assert result.code == 0, result
        assert (context_of(newest()), exported_positions(f"out{found[0]}")) == (found, 8)
    result = script("train", *TUNE[1:], f"init_from={shorter}", "model.context_length=9")
    result.assert_refused("model.context_length must be at most 8 as in init_from=")


@pytest.mark.parametrize("way", ["folder", "import"])
def test_what_a_folder_says_of_ids_and_sampling_stays_through_training(script, base, tmp_path, way):
    def settings_of(folder):
        names = ("config", "generation_config", "tokenizer_config")
        return {
            name: json.loads((tmp_path / folder / f"{name}.json").read_text()) for name in names
        }

    assert script("export", str(base), "out").code == 0
    published = settings_of("out")
    published["config"] |= {"bos_token_id": 3, "pad_token_id": 5}
    published["generation_config"] |= {"temperature": 0.3, "pad_token_id": 5}
    published["tokenizer_config"] |= {"pad_token": "A", "model_max_length": 1000}
    for name, values in published.items():
        (tmp_path / "out" / f"{name}.json").write_text(json.dumps(values))

    source = "out"
    if way == "import":
        assert script("import", "out", "runs/in").code == 0
        source = "runs/in"
    stopped = (*SHORT_RUN, f"init_from={source}", "trainer.max_time=1e-9")
    assert script("train", *TUNE[1:], *stopped).code == 0
    first = newest()
    shutil.rmtree(tmp_path / source)
    assert script("train", f"resume={first}", "trainer.max_time=null").code == 0
    result = script("train", *TUNE[1:], *SHORT_RUN, f"init_from={first}")
    assert result.code == 0, result

    assert script("export", "runs/latest", "again").code == 0
    assert settings_of("again") == published


def test_a_run_that_was_cut_off_goes_on_to_the_bit_though_the_base_is_gone(script, base, tmp_path):
    tuned = (f"init_from={base}", "freeze=embedding", "trainer.max_steps=4")
    assert script("train", *TUNE, *tuned).code == 0
    undisturbed = last(newest())

    assert script("train", *TUNE, *tuned, "trainer.max_time=1e-9").code == 0
    stopped = newest()
    assert last(stopped)["global_step"] < undisturbed["global_step"] == 4
    shutil.rmtree(base)
    result = script("train", f"resume={stopped}", "trainer.max_time=null")
    assert result.code == 0, result

    resumed = last(stopped)
    assert resumed["gptmini"]["init_from"] == undisturbed["gptmini"]["init_from"]
    for name, weight in undisturbed["state_dict"].items():
        assert torch.equal(weight, resumed["state_dict"][name]), name


def test_frozen_weights_stay_equal_bit_for_bit_and_have_no_moments(script, base, tmp_path):
    result = script("train", *TUNE, "init_from=runs/latest", "freeze=[embedding,blocks.0.mlp]")
    assert result.code == 0, result
    ((n_frozen, n_all),) = re.findall(r"([\d,]+) of ([\d,]+) parameters are frozen", result.out)

    before = read_checkpoint(base / "checkpoints" / "best.ckpt")["state_dict"]
    tuned = last(newest())
    same = {
        name for name, weight in tuned["state_dict"].items() if torch.equal(weight, before[name])
    }
    frozen = {
        f"model.{name}.weight"
        for name in ("embedding", "blocks.0.mlp.input", "blocks.0.mlp.output")
    }
    assert same == frozen
    # Only the embedding rows of 256 bytes and end-of-text count, not the padding rows.
    counted = {name: before[name].numel() for name in frozen}
    counted["model.embedding.weight"] = 257 * before["model.embedding.weight"].size(1)
    assert sum(counted.values()) == int(n_frozen.replace(",", ""))
    assert re.findall(r"model +([\d,]+) parameters", result.out) == [n_all]
    assert not frozen & set(tuned["optimizer_states"][0]["state"])


def test_a_text_is_prepared_with_the_tokenizer_of_a_model(script, base, tmp_path):
    arguments = (
        "data=text",
        "data.path=other.txt",
        "tokenizer=of_model",
        "tokenizer.path=runs/latest",
    )
    result = script("prepare", *arguments)
    assert result.code == 0, result
    (meta,) = (tmp_path / "data").glob("other-of_model-*/meta.json")
    _, tokenizer = gptmini.load("runs/latest")
    assert json.loads(meta.read_text())["tokenizer"] == tokenizer.to_dict()

    again = script("prepare", "data=text", "data.path=other.txt", f"init_from={base}")
    assert "prepared before" in again.out


@pytest.fixture
def overfitted(tmp_path):
    """Overrides of a run on random letters, which can only be memorised."""
    draw = random.Random(0)
    (tmp_path / "random.txt").write_text("".join(draw.choices("abcdefgh", k=600)))
    text = ("data=text", "data.path=random.txt", "tokenizer=char", "optimizer=adamw")
    length = ("trainer.max_steps=60", "trainer.val_every_steps=5", "optimizer.lr=0.003")
    quiet = ("callbacks.samples=null", "callbacks.pictures=null")
    return (*text, *length, *quiet, "model=tiny", "model.n_layers=2", "model.context_length=16")


def test_a_run_that_overfits_says_so_and_early_stopping_ends_it(script, overfitted):
    result = script("train", *overfitted)
    (line,) = re.findall(r"^overfit .*", result.out, re.MULTILINE)
    assert "callbacks=early_stopping" in line

    ends = []
    for patience in (1, 3):
        key = f"callbacks.early_stopping.patience={patience}"
        ended = script("train", *overfitted, "callbacks=early_stopping", key)
        early = re.search(r"^early +at step (\d+) of 60: .*val/loss", ended.out, re.MULTILINE)
        best = re.search(r"^best +val loss .*, step (\d+)$", ended.out, re.MULTILINE)
        assert int(early[1]) - int(best[1]) == 5 * patience  # validations are five steps apart
        ends.append(int(early[1]))
    assert ends[1] >= ends[0] + 2 * 5


def test_a_run_that_goes_on_from_its_first_validation_counts_it_once(script, base, tmp_path):
    """With a learning rate of 0, no loss is lower than the first, so best.ckpt stays at step 0."""
    stop = "{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: val/loss, patience: 1}"
    stopping = (f"+callbacks.stop={stop}",)
    tuned = ("init_from=runs/latest", "optimizer=adamw", "optimizer.lr=0", "trainer.max_steps=4")
    result = script("train", *TUNE, *tuned, *stopping, "trainer.val_every_steps=2")
    assert "early    at step 2 of 4" in result.out, result
    run = newest()
    best = run / "checkpoints" / "best.ckpt"
    contents = read_checkpoint(best)
    assert contents["global_step"] == 0
    # AdamW has not changed the weights, which Muon has trained.
    assert contents["gptmini"]["optimizer"] == "MuonSettings"
    assert last(run)["gptmini"]["optimizer"] == "AdamWSettings"

    result = script("train", f"resume={best}", *stopping)
    assert "early    at step 2 of 4" in result.out, result
    validations = curves_of(read_lines(run))["val/loss"]
    assert [step for step, _ in validations] == [0, 2]


def test_the_experiment_for_tuning_needs_weights_and_tunes_them(script, base, tmp_path):
    arguments = (
        "experiment=finetune",
        "data.path=other.txt",
        "trainer.max_steps=4",
        "trainer.val_every_steps=2",
    )
    script("train", *arguments).assert_refused("init_from must be ", "got ''")
    result = script("train", *arguments, "init_from=runs/smoke")
    assert result.code == 0, result
    losses = [float(loss) for loss in re.findall(r"val loss (\d+\.\d+)", result.out)]
    assert losses[-1] < losses[0]


@pytest.fixture
def sources(script, base, tmp_path):
    """Put the weights of the base run into the working folder in several forms. The base run was trained with Muon."""
    assert script("export", str(base), "exported").code == 0
    assert script("import", "exported", "imported").code == 0


@pytest.mark.parametrize("source", ["runs/latest", "exported", "imported"])
def test_weights_that_muon_did_not_train_take_the_optimizer_of_finetune(script, sources, source):
    def shown(*typed):
        command = ("data=text", "data.path=other.txt", f"init_from={source}", "--cfg", "job")
        config = yaml.safe_load(script("train", *command, *typed).out)
        return config["optimizer"], config["schedule"]["warmup_steps"], config["trainer"]

    optimizer, warmup, trainer = shown()
    muon, adamw = shown("optimizer=muon"), shown("experiment=finetune")
    by_muon = source == "runs/latest"
    assert (optimizer, warmup) == (muon if by_muon else adamw)[:2]
    assert trainer == muon[2] != adamw[2]
    if not by_muon:
        optimizer, warmup, _ = shown("optimizer.lr=0.5", "schedule=cosine")
        assert (optimizer, warmup) == ({**adamw[0], "lr": 0.5}, adamw[1])
        assert shown("schedule.warmup_steps=3")[:2] == (adamw[0], 3)


# A context of T tokens requires T + 1 validation tokens and 2 T training tokens. Each text ends with an end-of-text.
@pytest.mark.parametrize(("n_train", "n_val", "context"), [(7, 50, 4), (50, 5, 5), (50, 50, 8)])
def test_the_context_of_trained_weights_is_what_a_short_text_allows(
    script, base, tmp_path, n_train, n_val, context
):
    (tmp_path / "train.txt").write_text("a" * n_train)
    (tmp_path / "val.txt").write_text("a" * n_val)
    text = ("data=text", "data.path=train.txt", "data.val_path=val.txt", f"init_from={base}")
    full = None if context == 8 else 8
    sizes = yaml.safe_load(script("train", *text, "--cfg", "job").out)["model"]
    assert (sizes["context_length"], sizes["full_context_length"]) == (context, full)
    space = Space(dimensions={"seed": CategoricalDistribution(("1", "2"))}, tried={}, fixed=text)
    settings, _ = check_and_prepare(space, None)
    assert settings.plain["model"] == sizes

    result = script("train", *text, *SHORT_RUN, *TUNE[3:])
    assert result.code == 0, result
    assert (f"model.context_length={context} instead of 8" in result.out) == (context < 8)
    assert config_of(newest())["model"] == sizes
    if n_val < 8:
        refused = script("train", *text, "model.context_length=8")
        refused.assert_refused(f"model.context_length must be at most {n_val}", "got 8")
