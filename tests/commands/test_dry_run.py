"""gptmini train --dry-run: its figures against hand computations, what it prepares, and what it refuses."""

import itertools
import os
import re
from pathlib import Path

import pytest
import torch

from gptmini.job import dry_run
from gptmini.system.world import World
from gptmini.training.budget import ladder, timing

# The smallest model on bytes. A step has 4 windows of 8 tokens.
SMOKE = ("experiment=smoke", "data=text", "data.path=text.txt", "data.val_path=val.txt")
# A validation of 64 tokens after steps 16, 32 and 40.
STEPS = ("trainer.max_steps=40", "trainer.val_every_steps=16", "trainer.val_tokens=64")


@pytest.fixture(autouse=True)
def text(script):
    """Write a text of 3,199 bytes. With end-of-text, it has 3,200 tokens of tokenizer=byte."""
    Path("val.txt").write_text("To be, or not to be. " * 10)
    Path("text.txt").write_text("x" * 3199)


@pytest.fixture
def estimate(script, monkeypatch):
    """Return a function that runs --dry-run on a machine that takes half a second per step."""
    monkeypatch.setattr(dry_run, "measure_module", lambda *given, seconds: (0.5, 0.0))
    return lambda *arguments: script("train", *SMOKE, *arguments, "--dry-run")


def topics(result):
    """Return the lines of each topic."""
    assert (result.code, result.err) == (0, "")
    found = {}
    topic = ""
    for line in result.out.splitlines():
        topic = line[:9].strip() or topic
        found.setdefault(topic, []).append(line[9:])
    return found


def test_the_figures_are_those_of_a_hand_computation(estimate):
    found = topics(estimate(*STEPS))
    data = " ".join(found["data"])
    assert "3,200 training tokens, 211 validation tokens" in data
    assert float(re.search(r"(\S+) passes", data)[1]) == 0.4  # 40 * 32 / 3,200
    assert "1 thread" in found["machine"][0]
    for left_out in ("samples", "pictures", "TensorBoard"):
        assert left_out in found["memory"][1]

    assert found["steps"] == ["40 steps of 32 tokens: 1,280 tokens"]
    assert found["speed"] == ["0.5 s per step, 64 tokens per second"]
    # A validation takes 0.5 * 64 / 32 / 3 + 0.5 seconds, and what is around the steps takes 2.5 seconds.
    # 40 * 0.5 + 3 * 0.8333 + 2.5 = 25.0
    assert found["time"] == ["about 25 s with 3 validations"]


def test_nothing_is_left_but_the_prepared_text(estimate):
    first = topics(estimate(*STEPS))["data"][0]
    (prepared,) = Path("data").glob("*-byte-*")
    assert first == f"{prepared}, prepared now"
    assert topics(estimate(*STEPS))["data"][0] == f"{prepared}, prepared before"
    assert {path.name for path in Path().iterdir()} == {"data", "my.txt", "text.txt", "val.txt"}


def test_a_run_prints_the_same_data_model_machine_and_batch(estimate, script):
    split = (*STEPS, "trainer.batch_size=2", "callbacks=none", "logger=none")
    estimated = topics(estimate(*split))
    trained = topics(script("train", *SMOKE, *split))
    assert estimated["data"][1:] == trained["data"][1:]
    assert estimated["model"][0] == trained["model"][0]
    assert estimated["machine"] == trained["machine"]
    assert estimated["batch"] == trained["batch"]


def test_steps_of_the_real_model_are_measured_for_three_seconds(script, monkeypatch):
    ticks = itertools.count()  # one second per step
    monkeypatch.setattr(timing, "clock", lambda device: next(ticks))
    found = topics(script("train", *SMOKE, *STEPS, "--dry-run"))
    assert found["speed"] == ["1 s per step, 32 tokens per second"]
    assert next(ticks) == 2 * (1 + 3)  # the start and the end of a warm-up step and of three steps


@pytest.mark.parametrize(("has_bf16", "said"), [(False, "not known"), (True, "model.d_model=384")])
def test_automatic_choices_have_reasons(estimate, monkeypatch, has_bf16, said):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    found = topics(estimate("trainer.device=cpu", "trainer.compile=false"))
    reason = " ".join(found["reasons"])
    assert reason.startswith("trainer.precision=fp32: ")
    assert said in reason
    chosen = ("trainer.device=cpu", "trainer.precision=fp32", "trainer.compile=false")
    assert "reasons" not in topics(estimate(*chosen))


def test_the_memory_is_that_of_the_machine_or_of_the_gpu(monkeypatch):
    cpu = torch.device("cpu")
    gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    shown = re.search(r"of the ([\d.]+) GB of this machine", dry_run.memory_line(cpu))
    assert float(shown[1]) == pytest.approx(gigabytes, abs=0.06)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5_520_000_000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 80_000_000_000))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    gpu = torch.device("cuda")
    assert dry_run.memory_line(gpu) == "5.5 GB of the 80.0 GB of NVIDIA H100"


def test_a_time_limit_ends_the_run_earlier(estimate):
    # 15 - 2.5 - 0.8333 of 22.5 seconds are 20.7 of 40 steps. The last 0.8333 seconds are a validation.
    _, line = topics(estimate(*STEPS, "trainer.max_time=15"))["time"]
    assert line.endswith("trainer.max_time=15.0 ends the run at about step 20")
    assert len(topics(estimate(*STEPS, "trainer.max_time=60"))["time"]) == 1


def test_the_size_of_a_model_is_printed_and_refused_before_the_model_is_built(script, monkeypatch):
    monkeypatch.setattr("gptmini.job.dry_run.assemble", pytest.fail)
    monkeypatch.setattr("gptmini.system.hardware.memory", lambda device: 90_000)
    result = script("train", *SMOKE, "model=gpt2", "--dry-run")
    # V C + T C + N (12 C^2 + 13 C) + 2 C with V = 257, C = 16, T = 8 and N = 1: every linear layer and norm has a bias.
    assert 257 * 16 + 8 * 16 + 12 * 16**2 + 13 * 16 + 2 * 16 == 7552
    assert "7,552 parameters," in result.out
    # A weight, its gradient and a moment take 12 bytes: 12 * 7,552 = 90,624
    result.assert_refused("90.6 kB", "90.0 kB")


def test_several_devices_are_estimated_with_one(estimate):
    found = topics(estimate(*STEPS, "trainer.devices=2"))
    assert "2 devices" in found["batch"][0]
    assert found["speed"][0] == "0.5 s per step, 64 tokens per second"
    assert "2 devices" in found["speed"][1]


def test_only_the_first_rank_estimates(monkeypatch):
    from gptmini.commands import train

    monkeypatch.setattr(train, "this_world", lambda: World(launcher="torchrun", rank=1, size=2))
    monkeypatch.setattr(dry_run, "dry_run", lambda composed: pytest.fail("rank 1 has estimated"))
    assert train.estimate(None) is None


def test_trained_weights_are_validated_once_more(estimate, trained):
    found = topics(estimate(*STEPS, f"init_from={trained}"))
    assert any(trained.name in line for line in found["model"])
    assert "with 4 validations" in found["time"][0]


def test_it_estimates_what_a_budget_chooses(estimate, monkeypatch):
    monkeypatch.setattr(ladder, "LEAST_STEPS", 1)
    found = topics(estimate("data.path=my.txt", "budget=1m"))
    chosen = " ".join(found["budget"])
    n_steps = re.search(r"([\d,]+) steps:", chosen)[1]
    assert found["steps"][0].startswith(f"{n_steps} steps of ")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("file", "override", "words"),
    [
        ("mine/notes.txt", "folder=mine", ("folder=mine", "notes.txt")),
        ("mine/notes.txt", "runs_dir=mine/notes.txt", ("mine/notes.txt",)),
        ("runs/latest", "seed=1", ("runs/latest",)),  # a file of the user
    ],
)
def test_it_refuses_the_run_folders_that_a_run_refuses(script, file, override, words):
    Path(file).parent.mkdir()
    Path(file).touch()
    before = set(Path().rglob("*"))
    for flags in ((), ("--dry-run",)):
        script("train", *SMOKE, override, *flags).assert_refused(*words)
    assert set(Path().rglob("*")) == before  # a mistake is reported before the text is prepared


def test_an_empty_folder_stays_empty(estimate):
    Path("mine").mkdir()
    topics(estimate(*STEPS, "folder=mine"))
    assert not list(Path("mine").iterdir())
    topics(estimate(*STEPS, "folder=new"))
    assert not Path("new").exists()


def test_mistakes_are_one_line(script, trained):
    for place in (f"resume={trained}", f"folder={trained}"):
        script("train", place, "--dry-run").assert_refused("--dry-run", trained.name)
    script("train", "-m", "seed=1,2", "--dry-run").assert_refused("--dry-run", "-m")
    script("train", "--cfg", "job", "--dry-run").assert_refused("--dry-run", "--cfg")
    script("train", "--dryrun").assert_refused("--dryrun", "did you mean --dry-run?")
    script("prepare", "--dry-run").assert_refused("--dry-run")
    script("train", "--dry-run", "trainer.max_stepz=4").assert_refused("trainer.max_steps")
