"""The benchmarks start, the GPU benchmark runs on the CPU, and the page has the figures of the JSON files."""

import json
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gptmini.system.hardware import use_threads

ROOT = Path(__file__).parent.parent.parent
BENCHMARK = ROOT / "scripts" / "benchmark.py"


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Run a benchmark in an empty folder; run it in this process, to avoid another import of torch."""
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
        out, err = capfd.readouterr()
        return code, out, err

    use_threads(1)  # keeps torch's default number for the reset below
    yield call
    use_threads(None)


def test_every_benchmark_is_known_and_reads_its_options(run):
    code, out, _ = run("--help")
    assert code == 0
    names = out.split("NAME is one of ")[1].strip().split(", ")
    assert {"all", "page", "training"} <= set(names)
    for name in names:
        code, out, err = run(name, "--help")
        assert code == 0, err
        assert out.startswith(f"usage: benchmark.py {name} ")


def test_a_dry_run_measures_a_part_and_begins_no_row_after_the_minutes_are_over(run):
    # .ci/run runs the parts that train and sample.
    for minutes, status in (("9", "measured"), ("1e-9", "no time left")):
        code, out, err = run("gpu", "--dry-run", "--only", "machine", "--minutes", minutes)
        assert code == 0, out + err
        rows = json.loads(Path("gpu-dry-run.json").read_text())["rows"]
        assert {row["status"] for row in rows} == {status}


def test_no_figure_of_the_results_is_typed_by_hand(run):
    run("page", "--help")  # imports the benchmarks as the package _benchmarks
    page = import_module("_benchmarks.page")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_tables(text, page.RESULTS) == text
