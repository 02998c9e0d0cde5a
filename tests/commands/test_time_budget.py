"""Commands with budget=: what they choose, keep, print and refuse."""

import time
from functools import partial
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from gptmini.console import terminal
from gptmini.job import budget
from gptmini.training.budget import ladder
from run_folders import config_of, last, newest

TEXT = (
    "data=text",
    "data.path=my.txt",
    "callbacks.samples=null",
    "callbacks.pictures=null",
)
CHOSEN = (
    "tokenizer.vocab_size",
    *(f"model.{name}" for name in ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff")),
    *("model.context_length", "model.dropout", "trainer.global_batch_size"),
    *("trainer.max_steps", "trainer.val_every_steps"),
)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Allow few steps on a text as small as my.txt, measure for only 0.2 s, and print every phase."""
    monkeypatch.setattr(ladder, "LEAST_STEPS", 1)
    monkeypatch.setattr(budget, "CHOSEN_SECONDS", 0.2)
    monkeypatch.setattr(terminal, "INTERVAL_OF_PHASES", 0)


@pytest.fixture
def dial_output(script, once):
    """Output of a run with a budget of one minute; preparing its text takes little of it."""
    result = once("choice", lambda: script("train", *TEXT, "budget=1m")).result
    assert result.code == 0, result
    return result.out


def test_its_numbers_alone_train_the_same_weights(script, dial_output):
    config = OmegaConf.create(config_of(newest()))
    weights = last(newest())["state_dict"]
    typed = [f"{key}={OmegaConf.select(config, key)}" for key in CHOSEN]
    assert script("train", *TEXT, *typed).code == 0
    again = last(newest())["state_dict"]
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_it_says_what_it_measures_and_has_chosen(dial_output):
    assert "measuring models of increasing width\n" in dial_output
    assert "measuring the chosen model\n" in dial_output
    config = OmegaConf.create(config_of(newest()))
    said = next(line for line in dial_output.splitlines() if "chosen: " in line)
    assert f"{config.model.n_layers} blocks of width {config.model.d_model}," in said
    assert f" {config.trainer.max_steps} steps: " in said
    # A step reads 2,048 tokens, and the run has at most 40 passes.
    passes = float(said.partition(" steps: ")[2].partition(" ")[0])
    assert 36 < passes <= 40


def test_a_run_with_it_goes_on_by_its_numbers(script, dial_output):
    again = script("train", *TEXT, "budget=1m", f"folder={newest()}")
    assert "is complete" in again.out, again

    steps = config_of(newest())["trainer"]["max_steps"] + 1
    result = script("train", "resume=runs/latest", f"trainer.max_steps={steps}")
    assert result.code == 0, result
    assert "budget" not in result.out
    assert last(newest())["global_step"] == steps
    script("train", "resume=runs/latest", "budget=2m").assert_refused("leave out budget=2m")


def test_what_is_typed_stays_and_the_rest_is_chosen(script):
    kept = (
        "tokenizer=byte",
        "model.n_layers=1",
        "trainer.max_steps=2",
        "trainer.global_batch_size=4",
    )
    assert script("train", *TEXT, "budget=1m", *kept).code == 0
    config = config_of(newest())
    assert config["model"]["n_layers"] == 1
    assert config["model"]["d_model"] != 128  # the value in the configuration
    assert config["trainer"]["max_steps"] == 2
    assert config["trainer"]["global_batch_size"] == 4
    assert "vocab_size" not in config["tokenizer"]


def test_what_an_experiment_sets_stays_but_for_its_steps(script):
    command = ("train", "experiment=smoke", *TEXT, "--cfg", "job")
    plain = OmegaConf.create(script(*command).out)
    with_budget = OmegaConf.create(script(*command, "budget=1m").out)
    assert with_budget.model.d_model == plain.model.d_model
    assert with_budget.trainer.max_steps > plain.trainer.max_steps


def test_an_option_of_the_model_chooses_its_form_but_not_its_sizes(script, tmp_path):
    options = ("model=gpt2", "tokenizer=bpe", "trainer.max_time=1:00")
    shown = OmegaConf.create(script("train", *TEXT, *options, "budget=0:01:00", "--cfg", "job").out)
    assert (shown.model.position, shown.model.mlp) == ("learned", "gelu")
    assert (shown.model.n_kv_heads, shown.model.d_ff) == (None, None)  # as in every GPT-2
    assert shown.model.d_model == 96
    assert shown.tokenizer.vocab_size < 4000
    assert shown.trainer.max_steps < 500
    assert not (tmp_path / "runs").exists()


def test_gptmini_prepare_shows_its_configuration_and_chooses_nothing(script, tmp_path):
    shown = OmegaConf.create(script("prepare", *TEXT[:2], "budget=1m", "--cfg", "job").out)
    assert shown.budget == "1m"
    assert not (tmp_path / "data").exists()


def test_pictures_that_do_not_fit_the_chosen_model_are_refused_before_the_text_is_prepared(
    script, tmp_path
):
    """The configured model has four heads, the chosen model three."""
    pictures = ("callbacks.pictures.heads=[3]", "callbacks.samples=null")
    result = script("train", "data=text", "data.path=my.txt", "budget=1m", *pictures)
    result.assert_refused("callbacks.pictures.heads", "[3]")
    assert not (tmp_path / "data").exists()


def test_a_model_to_begin_with_keeps_its_sizes(script, trained, monkeypatch):
    monkeypatch.setattr(budget, "climb_ladder", pytest.fail)
    Path("val.txt").write_text("short")  # five tokens and an end-of-text
    tuned = (*TEXT, f"init_from={trained}")
    result = script("train", *tuned, "data.val_path=val.txt", "budget=1m", "--cfg", "job")
    assert result.code == 0, result
    here, source = OmegaConf.create(result.out), config_of(trained)
    assert here["model"]["d_model"] == source["model"]["d_model"]
    assert (here["model"]["context_length"], source["model"]["context_length"]) == (5, 8)
    assert here["trainer"]["max_steps"] != 500

    result = script("train", *tuned, "budget=1s")
    result.assert_refused("budget=1s leaves no time to train", "raise budget=")
    assert "vocab_size" not in result.err  # advice that cannot be followed


@pytest.fixture
def compiled_graphs(monkeypatch):
    """Replace inductor, which needs a C++ compiler and a minute. Return a list with the graphs that torch compiles."""
    graphs = []

    def compile_nothing(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr("gptmini.system.hardware.check_compiler", lambda device: None)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compile_nothing))
    yield graphs
    torch.compiler.reset()


def test_the_run_uses_the_code_that_was_compiled_for_the_measurement(script, compiled_graphs):
    small = ("tokenizer=byte", "model.n_layers=1", "trainer.max_steps=2")
    command = ("train", *TEXT, *small, "budget=1m", "trainer.compile=true")
    # torch keeps one compiled graph. Compiling more graphs without a reset fails.
    with torch._dynamo.config.patch(recompile_limit=1):
        for n_graphs, width in enumerate((16, 24), start=1):  # another run in the same process
            result = script(*command, f"model.d_model={width}")
            assert result.code == 0, result
            assert len(compiled_graphs) == n_graphs


@pytest.mark.parametrize(
    ("compile", "n_devices", "seconds_to_compile"), [(False, 2, 0), (True, 1, 0), (True, 2, 20)]
)
def test_seconds_to_compile_count_once(
    script, monkeypatch, compiled_graphs, compile, n_devices, seconds_to_compile
):
    """The measurement of one device compiles for this device. The ranks of a run with two devices compile again."""
    seconds_of = []

    def steps_that_fit(seconds, seconds_a_step, of_validation, *, most):
        seconds_of.append(seconds)
        return 5, 5

    monkeypatch.setattr(budget, "measure_module", lambda *given, seconds: (0.5, 20.0))
    monkeypatch.setattr(budget, "steps_that_fit", steps_that_fit)
    monkeypatch.setattr(ladder, "_seconds_a_step", lambda *given: 0.5)
    began = time.monotonic()
    result = script(
        "train", *TEXT, "budget=100s", f"trainer.compile={compile}", f"trainer.devices={n_devices}",
        "--cfg", "job",
    )  # fmt: skip
    assert result.code == 0, result
    elapsed = time.monotonic() - began
    left = 100 - budget.SECONDS_AROUND - seconds_to_compile
    assert left - elapsed <= seconds_of[0] <= left


@pytest.mark.parametrize(
    ("seconds_a_step", "limit", "source", "expected"),
    [
        (10.0, "100s", "null", True),  # 100 steps would take longer than the limit
        (10.0, "50s", "null", False),
        (0.5, "100s", "null", False),  # the text is worth 100 steps, which take 50 s
        # 40 passes at the context of the source are 2,000 steps. Without budget=, the run would have fewer than 400.
        (0.1, "100s", "RUN", True),
    ],
)
def test_it_compiles_if_the_useful_steps_in_its_time_are_long(
    script, trained, monkeypatch, compiling_gpu, seconds_a_step, limit, source, expected
):
    source = source.replace("RUN", str(trained))
    monkeypatch.setattr(ladder, "LEAST_STEPS", 100)
    monkeypatch.setattr(ladder, "_seconds_a_step", lambda *given: seconds_a_step)
    monkeypatch.setattr(budget, "measure_module", lambda *given, seconds: (seconds_a_step, 0.0))
    compiling_gpu(seconds_a_step)
    result = script("train", *TEXT, f"init_from={source}", f"budget={limit}", "--cfg", "job")
    assert result.code == 0, result
    assert OmegaConf.create(result.out).trainer.compile is expected


@pytest.mark.parametrize(
    ("module", "name", "measured"),
    [(ladder, "_seconds_a_step", 640.0), (budget, "measure_module", (640.0, 0.0))],
)
def test_too_little_time_for_a_step_is_one_line_with_its_seconds(
    script, monkeypatch, module, name, measured
):
    monkeypatch.setattr(module, name, lambda *given, **options: measured)
    result = script("train", *TEXT, "budget=1m")
    result.assert_refused("budget=1m leaves no time to train", "640 s", "raise budget=")


@pytest.mark.parametrize(
    ("given", "said"), [("0.5", "budget=0.5 leaves no time to train"), ("5x", "budget must be ")]
)
def test_too_little_time_or_a_wrong_one_is_one_line(script, given, said):
    script("train", *TEXT, f"budget={given}").assert_refused(said)
