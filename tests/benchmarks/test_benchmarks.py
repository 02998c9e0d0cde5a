"""The benchmarks' harness: turns, medians, goals, tables, the page; and benchmarks at toy sizes."""

import json
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gptmini.hardware import use_threads

ROOT = Path(__file__).parent.parent.parent
BENCHMARK = ROOT / "scripts" / "benchmark.py"
SHORT = (
    "data=text",
    "data.path=my.txt",
    "tokenizer=char",
    "model.n_layers=1",
    "model.d_model=16",
    "model.context_length=8",
    "trainer.batch_size=4",
    "trainer.global_batch_size=4",
    "trainer.val_tokens=64",
)


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Run a benchmark in a folder that holds my.txt, in this process, which need not import torch again."""
    (tmp_path / "my.txt").write_text("".join(f"Line {i} is {i * i}.\n" for i in range(300)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", [str(BENCHMARK), *arguments])
        capfd.readouterr()
        try:
            runpy.run_path(str(BENCHMARK), run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    use_threads(1)  # which keeps torch's own number from before
    yield call
    use_threads(None)


@pytest.fixture
def harness(run):
    """The harness, which benchmark.py imports under a name of its own."""
    run("page", "--help")
    return import_module("_benchmarks.harness")


def rows_of(name):
    return json.loads(Path(f"{name}.json").read_text())["rows"]


@pytest.mark.parametrize(
    ("figure", "goal", "is_met"),
    [
        (4, "at least 4", True),
        (3.9, "at least 4", False),
        (128_000, "at most 128,000", True),
        (1e-3, "at most 1e-4", False),
        (50, "below 50", False),
        (1.9, "1.87 to 1.92", True),
        (1.93, "1.87 to 1.92", False),
        (0, "0", True),
        (1, "0", False),
    ],
)
def test_a_goal_is_met_or_missed(harness, figure, goal, is_met):
    assert harness.met(figure, goal) == is_met


def test_turns_alternate_and_their_figure_is_the_median_with_the_range(harness, tmp_path):
    asked = []
    speeds = {"ours": iter([6.0, 9.0, 8.0]), "theirs": iter([3.0, 3.0, 2.0])}

    def of(name):
        asked.append(name)
        return next(speeds[name])

    found = harness.in_turns(3, {name: lambda name=name: of(name) for name in speeds})
    assert asked == ["ours", "theirs"] * 3

    table = harness.Table("mine", tmp_path / "mine.json", [""])
    table.add_median("speed", harness.ratios(found["ours"], found["theirs"]), goal="at least 3.5")
    (row,) = rows_of("mine")
    assert (row["figure"], row["spread"], row["method"]) == (3.0, [2.0, 4.0], "3 turns")
    assert harness.cells(row) == ["speed", "3.0", "2.0 to 4.0", "at least 3.5: missed", "3 turns"]


def test_a_table_keeps_the_parts_that_are_not_measured_again(harness, tmp_path):
    path = tmp_path / "mine.json"
    earlier = [{"part": part, "what": part} for part in ("once", "kills", "memory")]
    path.write_text(json.dumps({"machine": "", "rows": earlier}))

    table = harness.Table("mine", path, ["kills"])
    table.part = "kills"
    table.add("kills", 1234)
    assert [row["part"] for row in rows_of("mine")] == ["memory", "kills", "once"]


def test_the_page_says_once_what_is_the_same_in_every_row(harness, tmp_path):
    row = {"spread": None, "goal": "0", "method": "", "part": "two"}
    rows = [row | {"what": "tokens", "figure": 87040}, row | {"what": "kills", "figure": 1}]
    rows.append(rows[0] | {"part": "one"})
    for name, machine in (("mine", "a GPU"), ("a", "a CPU"), ("b", "a CPU")):
        results = {"benchmark": name, "machine": machine, "rows": rows}
        (tmp_path / f"{name}.json").write_text(json.dumps(results))

    page = import_module("_benchmarks.page")
    text = "<!-- machine -->\n<!-- end -->\n<!-- table: mine two -->\nold\n<!-- end -->\nAfter.\n"
    machine = "<!-- machine -->\n\nUnless a table names another machine: a CPU.\n\n<!-- end -->\n"
    table = "| what | figure |\n|---|---|\n| tokens | 87,040 |\n| kills | 1 |\n"
    below = "Goal of every row: 0: missed. On a GPU.\n"
    written = f"{machine}<!-- table: mine two -->\n\n{table}\n{below}\n<!-- end -->\nAfter.\n"
    assert page.with_tables(text, tmp_path) == written


def test_no_figure_of_the_results_is_typed_by_hand(harness):
    page = import_module("_benchmarks.page")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_tables(text, harness.RESULTS) == text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train", "there is no benchmark train: "),
        ("ablation optimizer.lr=-1", "optimizer.lr must be greater than or equal to 0, got -1"),
        ("page --out absent/x.json", "--out must be a file in a folder that is there"),
        ("page --out my.txt", "my.txt must be a table of benchmark.py, or a new file"),
        ("page --turns 0", "--turns: must be at least 1, got 0"),
        ("all --nanogpt absent", "--nanogpt: must be a checkout of nanoGPT"),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_measured(run, command, message):
    name, *arguments = command.split()
    overrides = SHORT if name == "ablation" else ()
    result = run(name, *overrides, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_part_whose_peer_is_not_there_is_left_out(run):
    result = run("exported", "--only", "mlx", "llama")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "mlx: left out, because it needs --mlx-python",
        "llama: left out, because it needs --llama",
    ]


@pytest.mark.slow
def test_training_splits_the_step(run):
    result = run("training", *SHORT, "--turns", "1", "--steps", "2", "--only", "step")
    assert result.returncode == 0, result.stderr
    parts = ("data", "forward", "backward", "optimizer")
    figures = {row["what"]: row["figure"] for row in rows_of("training")}
    spent = [figures[f"of a step, milliseconds in {part}"] for part in parts]
    added = figures["of a step, milliseconds in Lightning's Trainer"]
    assert min(spent) > 0
    # Each figure has four digits.
    assert figures["milliseconds of such a step"] == pytest.approx(sum(spent) + added, rel=5e-3)


@pytest.mark.slow
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
    for name, text in (("train", peer), ("model", ""), ("configurator", "")):
        (tmp_path / "peer" / f"{name}.py").write_text(text)

    # .ci/run tries the other parts.
    parts = ["ladder_modern", "peer", "kernels"]
    result = run("gpu", "--dry-run", "--nanogpt", "peer", "--only", *parts)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = rows_of("gpu-dry-run")
    assert [row for row in rows if row["status"] != "measured"] == []
    assert list(dict.fromkeys(row["part"] for row in rows)) == parts

    ladder = [row for row in rows if row["part"] == "ladder_modern"]
    assert ladder[-1]["what"].count(" + ") >= 3  # all levers that helped, together
    assert len([row for row in rows if row["part"] == "kernels"]) == 11  # the run, and ten kernels
    (theirs,) = [row for row in rows if row["what"] == "turn 1: tokens a second of nanoGPT"]
    assert theirs["ms_a_step"] == 103  # the median of steps 2 to 4: 102, 103, 104
    assert theirs["figure"] == pytest.approx(8 * 32 / 0.103, abs=0.5)


@pytest.mark.slow
def test_no_row_is_begun_after_the_minutes_are_over(run):
    assert run("gpu", "--dry-run", "--only", "machine", "--minutes", "1e-9").returncode == 0
    assert {row["status"] for row in rows_of("gpu-dry-run")} == {"no time left"}
