"""The measurements run and print what they promise, on runs cut short; their figures are in docs/results.md."""

import json
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

BENCHMARK = Path(__file__).parent.parent.parent / "scripts" / "benchmark.py"
SHORT = [
    "data=text",
    "data.path=my.txt",
    "tokenizer=char",
    "model.n_layers=1",
    "model.d_model=16",
    "model.context_length=8",
    "trainer.batch_size=4",
    "trainer.global_batch_size=4",
    "trainer.val_tokens=64",
]

# What a dry run of the GPU's benchmark tries here. .ci/run tries the parts that start training runs of their own, and
# the checks, which are tests themselves.
PARTS = ["machine", "ladder_gpt2", "ladder_modern", "peer", "kernels"]

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Run a benchmark in a folder that holds my.txt, in this process, which need not import torch again."""
    (tmp_path / "my.txt").write_text("".join(f"Line {i} is {i * i}.\n" for i in range(300)))
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", [str(BENCHMARK), *arguments])
        capfd.readouterr()
        try:
            runpy.run_path(str(BENCHMARK), run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code or 0

        out, err = capfd.readouterr()
        torch.set_num_threads(1)
        return subprocess.CompletedProcess(arguments, code, stdout=out, stderr=err)

    return call


def test_training_splits_the_step(run):
    result = run("training", *SHORT, "--turns", "2", "--steps", "3")
    assert result.returncode == 0, result.stderr

    lines = [line.split() for line in result.stdout.splitlines()]
    parts = ["data", "forward", "backward", "optimizer", "framework"]
    assert [words[0] for words in lines] == [*parts, "Trainer", "ratio", "use", "memory"]
    assert all(float(words[1]) > 0 for words in lines[:4])


def test_watching_prints_what_scalars_and_pictures_take_of_a_run(run):
    steps = ["trainer.max_steps=4", "trainer.val_every_steps=2"]
    result = run("watching", *SHORT, *steps, "--turns", "2")
    assert result.returncode == 0, result.stderr

    *turns, scalars, others, ratio = result.stdout.splitlines()
    assert [line.split(":")[0] for line in turns] == ["turn 1", "turn 2"]
    whole, scalars_taken, others_taken, _ = map(float, re.findall(r"([\d.]+) s", turns[0]))
    assert 0 < scalars_taken < others_taken < whole  # four steps are soon over, pictures are not
    assert float(scalars.split()[1].rstrip("%")) < float(others.split()[3].rstrip("%")) < 100
    assert float(ratio.split()[3].rstrip(",")) > 1


def test_efficiency_alternates_with_a_peer_and_gives_the_last_loss(run, tmp_path):
    log = tmp_path / "peer.txt"

    def logging(word):
        return f"{sys.executable} -c \"open('{log}', 'a').write('{word} ')\""

    peer = ["--peer", logging("whole"), "--peer-brief", logging("brief")]
    steps = ["trainer.max_steps=4", "trainer.val_every_steps=2"]
    result = run("efficiency", *SHORT, *steps, "--seeds", "5", "6", *peer)
    assert result.returncode == 0, result.stderr

    assert log.read_text().split() == ["whole", "brief"] * 2
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ours     128 tokens: experiment=shakespeare_char_cpu data=text")
    assert [line.split()[0] for line in lines[1:-3]] == ["seed", "peer"] * 2
    losses = [float(line.split()[4].rstrip(",")) for line in lines if line.startswith("seed")]
    assert float(lines[-3].split()[3]) == pytest.approx(sum(losses) / 2, abs=1e-4)
    assert "the peer takes" in lines[-1]


def test_efficiency_says_which_command_failed(run):
    wild = ("experiment=smoke", "optimizer=adamw", "optimizer.lr=1e30", "schedule.warmup_steps=0")
    steps = ("trainer.max_steps=4", "trainer.max_bad_steps=1")
    result = run("efficiency", *SHORT, *wild, *steps)
    assert (result.returncode, result.stdout.count("seed")) == (2, 0)
    assert result.stderr.startswith(f"error: {sys.executable} {BENCHMARK.with_name('train.py')} ")
    assert "ended with exit code 2: error: 1 steps in a row, to step " in result.stderr
    assert result.stderr.count("\n") == 1


def test_contention_compares_the_median_speeds_of_runs_in_turns(run, monkeypatch):
    waits = []

    def train(command, *, env, check):
        """Stand for gptmini train: fast where the environment leaves the waiting to gptmini."""
        waits.append(env.get("GOMP_SPINCOUNT"))
        (folder,) = [word.removeprefix("runs_dir=") for word in command if "runs_dir=" in word]
        speeds = (1, 60, 80, 70) if waits[-1] is None else (1, 30, 10, 20)
        metrics = Path(folder) / "my" / "now" / "metrics.jsonl"
        metrics.parent.mkdir(parents=True)
        lines = [json.dumps({"step": 1, "work/tokens_per_second": speed}) for speed in speeds]
        metrics.write_text("\n".join([*lines, '{"step": 1, "val/loss": 2.0}', ""]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", train)
    result = run("contention", *SHORT, "--turns", "2")
    assert result.returncode == 0, result.stderr

    assert waits == ["300000", None] * 4
    lines = [line.split() for line in result.stdout.splitlines()]
    medians = "medians gptmini 70, torch 20 tokens/s: 3.50 times as fast"
    assert lines.count(medians.split()) == 2
    assert [line[1] for line in lines if line[0] == "beside"] == ["0", "1"]


@pytest.mark.parametrize("name", ["ablation", "contention", "efficiency", "training", "watching"])
def test_a_mistake_is_told_in_one_line_before_anything_is_measured(run, name):
    result = run(name, *SHORT, "optimizer.lr=-1")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: optimizer.lr must be greater than or equal to 0, got -1\n"


def test_an_unknown_benchmark_is_refused_in_one_line(run):
    result = run("train")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: there is no benchmark train: ")
    assert result.stderr.count("\n") == 1


def test_ablation_prints_a_row_for_each_trick(run):
    result = run("ablation", *SHORT, "trainer.max_steps=3", "--seeds", "1", "2")
    assert result.returncode == 0, result.stderr

    rows = []
    for line in result.stdout.splitlines()[2:]:
        rows.append([cell.strip() for cell in line.split("|")[1:-1]])
    assert rows[0][0] == "the whole recipe"
    assert len(rows) > 15
    for name, loss, differences, _ in rows[1:]:
        mean = sum(map(float, differences.split(","))) / 2
        assert float(loss) - float(rows[0][1]) == pytest.approx(mean, abs=2e-3), name


def test_sampling_measures_every_size_beside_hugging_face_and_nanogpt(run, tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="the peer to measure beside")
    peer = """
import torch
class GPTConfig:
    def __init__(self, **sizes): self.sizes = sizes
class GPT(torch.nn.Module):
    def __init__(self, config): super().__init__()
    def generate(self, prompt, n_tokens, temperature, top_k):
        open("asked.txt", "a").write(f"{prompt.shape} {n_tokens} ")
"""
    (tmp_path / "nanogpt").mkdir()
    (tmp_path / "nanogpt" / "model.py").write_text(peer)
    # nanoGPT's module is called model, as is a package of these tests.
    monkeypatch.setitem(sys.modules, "model", None)
    del sys.modules["model"]
    monkeypatch.setattr(sys, "path", list(sys.path))

    options = "--sizes char --batch-sizes 1 3 --new-tokens 4 --turns 2 --nanogpt nanogpt"
    result = run("sampling", *options.split(), "--dtype", "fp32")
    assert result.returncode == 0, result.stderr

    asked = (tmp_path / "asked.txt").read_text()
    # Each batch size is drawn three times: a turn that warms up, and two that count.
    assert asked == "torch.Size([1, 8]) 4 " * 3 + "torch.Size([3, 8]) 4 " * 3
    first, *rows, last = result.stdout.splitlines()
    assert first == "4 tokens after 8, cpu, float32"
    assert [row.split(":")[0] for row in rows] == ["char, batch 1", "char, batch 3"]
    speeds = [rf"{name} [\d,]+ tokens/s" for name in ("ours", "Hugging Face", "nanoGPT")]
    for row in rows:
        assert re.search(", ".join(speeds), row)
        assert re.search(r"[\d.]+ times Hugging Face \([\d.]+ to [\d.]+\)", row)
    assert 0.1 < float(last.split()[2]) < 60


def test_a_dry_run_tries_the_parts_of_what_a_gpu_will_show(run, tmp_path):
    # Stands for nanoGPT: opens the tokens that were written for it, and prints a line for each step that it is told.
    peer = """
        import numpy, sys
        told = dict(flag.removeprefix("--").split("=") for flag in sys.argv[1:])
        assert len(numpy.memmap(f"data/{told['dataset']}/train.bin", dtype=numpy.uint16)) > int(told["block_size"])
        for step in range(int(told["max_iters"]) + 1):
            print(f"iter {step}: loss 10.1234, time {100 + step}.00ms, mfu 1.00%")
    """
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "train.py").write_text(textwrap.dedent(peer))
    for name in ("model", "configurator"):
        (tmp_path / "peer" / f"{name}.py").write_text("")

    result = run("gpu", "--dry-run", "--peer-nanogpt", "peer", "--only", *PARTS)
    assert result.returncode == 0, result.stdout + result.stderr

    rows = json.loads((tmp_path / "gpu-dry-run.json").read_text())
    assert [row for row in rows if row["status"] not in ("measured", "passed")] == []
    assert list(dict.fromkeys(row["part"] for row in rows)) == PARTS

    kernels = [row for row in rows if row["part"] == "kernels"]
    assert len(kernels) == 11  # the run that is profiled, and its ten slowest kernels
    for part in ("ladder_gpt2", "ladder_modern"):
        ladder = [row for row in rows if row["part"] == part]
        assert all(row["tokens_per_second"] > 0 for row in ladder)
        assert ladder[-1]["row"].count(" + ") >= 3  # all levers that helped, together

    (theirs,) = [row for row in rows if row["row"] == "nanoGPT, turn 1"]
    assert theirs["ms_a_step"] == 103  # the median of steps 2 to 4: 102, 103, 104
    assert theirs["tokens_per_second"] == pytest.approx(8 * 32 / 0.103)


def test_a_gpu_is_needed_for_what_is_no_dry_run(run):
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    result = run("gpu", "--only", "machine")
    assert result.returncode == 2
    assert "none is here; --dry-run tries every part on the CPU" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "--minutes must be above 0"),
        (
            ["--peer-nanogpt", "absent"],
            "--peer-nanogpt must be a checkout of nanoGPT with its train.py, got absent",
        ),
        (["--shakespeare", "absent.txt"], "--shakespeare must be a file, got absent.txt"),
        (["--out", "."], "--out must be a file in a folder that is there, got ."),
        (
            ["--out", "absent/gpu.json"],
            "--out must be a file in a folder that is there, got absent/gpu.json",
        ),
        (["--out", "my.txt"], "--out must be a table of this command or a new file, got my.txt"),
        (["--only", "nothing"], "invalid choice: 'nothing'"),
    ],
)
def test_what_a_gpu_is_not_asked(monkeypatch, capsys, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("Once upon a time.")
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "gpu", "--dry-run", *arguments])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(BENCHMARK), run_name="__main__")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said


def test_no_row_is_begun_after_the_minutes_are_over(run, tmp_path):
    result = run("gpu", "--dry-run", "--only", "machine", "ladder_gpt2", "--minutes", "1e-9")
    assert result.returncode == 0
    rows = json.loads((tmp_path / "gpu-dry-run.json").read_text())
    assert {row["status"] for row in rows if row["part"] == "ladder_gpt2"} == {"no time left"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sampling", "--json", "/nope/x"], "--json must be a file in a folder that is there"),
        (["sampling", "--nanogpt", "nope"], "--nanogpt must be a checkout of nanoGPT"),
        (["efficiency", "--seeds", "-1"], "seed must be greater than or equal to 0, got -"),
        (["efficiency", "--peer-folder", "nope"], "--peer-folder must be a folder, got nope"),
        (["ablation", "--seeds", "1", "-2"], "seed must be greater than or equal to 0, got -"),
    ],
)
def test_a_mistake_is_told_before_anything_is_measured(run, arguments, message):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
