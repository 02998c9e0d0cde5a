"""The page that report.py writes: complete, alone, safe, and about the run that was named."""

import csv
import json
import math
import re
import shutil
from html.parser import HTMLParser

import pytest

from gptmini.report.page import figures_table, image, newest_first, table, thinned
from gptmini.report.reported_run import ReportedRun
from gptmini.report.tags import LAYOUT
from gptmini.training import MetricsLogger

pytestmark = pytest.mark.slow  # together they take minutes


class Page(HTMLParser):
    """What a browser would load and show of a page."""

    def __init__(self, text):
        super().__init__()
        self.references = []
        self.headings = []
        self.tags = []
        self.texts = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._open = tag
        for name, value in attributes:
            if name in ("src", "href", "data", "srcset"):
                self.references.append(value)

    def handle_data(self, data):
        self.texts.append(data)
        if self._open in ("h1", "h2") and data.strip():
            self.headings.append(data)


@pytest.fixture
def two_runs(script, watched, once, tmp_path):
    """The working folder with two runs: a, and b with another seed."""

    def train():
        assert script("train", *watched, "name=a").code == 0
        assert script("train", *watched, "name=b", "seed=2").code == 0

    once("two runs", train)
    return tmp_path


def test_the_page_of_a_run_has_everything_and_needs_nothing_else(two_runs, script):
    said = script("report", "runs/a")
    assert said.code == 0

    (path,) = two_runs.glob("runs/a/*/report.html")
    assert said.out.startswith(f"{path.relative_to(two_runs)}, ")

    # It loads nothing.
    text = path.read_text()
    page = Page(text)
    assert all(reference.startswith("data:image/") for reference in page.references)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert "@import" not in text
    assert "url(" not in text

    # It has every section, and every picture.
    assert page.headings[1:] == [
        "Where it stands",
        *LAYOUT,
        "Samples",
        "What it mispredicts most",
        "Attention",
        "Loss by position",
        "Loss histogram",
        "Model",
        "Data",
        "Configuration",
    ]
    n_charts = sum(len(charts) for charts in LAYOUT.values())
    drawings = [r for r in page.references if r.startswith("data:image/svg+xml;")]
    assert len(drawings) == n_charts - 2  # no step was bad, and no peak is known
    pictures = [r for r in page.references if r.startswith("data:image/png;")]
    assert len(pictures) == 3 * 2  # three of the first validation, three of the last

    # It has the figures of the log.
    cells = [word.strip() for word in page.texts]
    assert "blocks.*.attention.qkv.weight" in cells
    assert "trainer.val_every_steps" in cells

    best = re.search(r"best +val loss (\S+),", (path.parent / "train.log").read_text())[1]
    assert cells[cells.index("best val loss, nats per token") + 1] == best


def test_runs_are_laid_over_each_other_with_what_differs(two_runs, script):
    said = script("report", "--compare", "runs/a", "runs/b", "--out", "page.html")
    assert said.out.startswith("page.html, ")

    text = (two_runs / "page.html").read_text()
    page = Page(text)
    differs = "What differs in their configurations"
    assert page.headings[:3] == ["a and b", "Where they stand", differs]

    cells = [word.strip() for word in page.texts if word.strip()]
    start = cells.index(differs)
    assert cells[start + 1 : start + 9] == ["a", "b", "name", "a", "b", "seed", "1", "2"]
    assert text.count("<pre>") == 2  # a sample of each
    assert all(reference.startswith("data:image/") for reference in page.references)


def test_a_running_or_killed_run_can_be_reported(two_runs, script):
    (folder,) = (path.parent for path in two_runs.glob("runs/a/*/config.yaml"))
    metrics = folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-100])  # amid a line
    assert script("report", "runs/a").code == 0


def test_nothing_that_a_model_writes_becomes_part_of_the_page():
    expected = (
        "<table><tr><th>&lt;b&gt;</th><th>x</th></tr>"
        "<tr><td>&lt;script&gt;alert(1)&lt;/script&gt;</td><td>&amp;</td></tr></table>"
    )
    assert table([["<b>", "x"], ["<script>alert(1)</script>", "&"]]) == expected

    expected = '<img src="data:image/png;base64,AA==" alt="&quot;&gt;&lt;script&gt;">'
    assert image("png", b"\x00", '"><script>') == expected


def test_a_sample_that_is_html_is_shown_as_text(two_runs, script, tmp_path):
    (folder,) = (path.parent for path in two_runs.glob("runs/a/*/config.yaml"))
    logger = MetricsLogger(folder)
    logger.log_samples(["<script>alert(1)</script>\n# no heading", "second"], 9)
    logger.log_table("zoom/mispredicted", [["token"], ["<img src=x onerror=y>|*a*"]], 9)
    logger.finalize("success")

    script("report", "runs/a")
    text = next(folder.glob("report.html")).read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\n# no heading" in text

    shown = "".join(Page(text).texts)
    assert "<script>alert(1)</script>\n# no heading" in shown
    assert "<img src=x onerror=y>|*a*" in shown


def test_a_curve_of_many_points_keeps_its_last_and_its_best(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1")
    logger = MetricsLogger(tmp_path)
    for step in range(1, 1202):
        val_loss = {1: math.nan, 700: 0.25}.get(step, 1.0)
        train_loss = {1201: 2.0}.get(step, 1.5)
        logger.log_metrics({"val/loss": val_loss, "train/loss": train_loss}, step)
    logger.finalize("success")

    run = ReportedRun(tmp_path)
    shown = thinned(run.curve("train/loss"))
    assert len(shown) <= 501
    assert shown[-1] == (1201, 2.0)
    assert len({step for step, _ in shown}) == len(shown)
    assert "<td>best val loss, nats per token</td><td>0.2500</td>" in figures_table([run])
    assert thinned([(170, 1.9)]) == [(170, 1.9)]
    assert thinned([]) == []


def test_runs_are_told_apart_whatever_they_are_called(two_runs, script):
    (elsewhere,) = two_runs.glob("runs/a/*/")
    shutil.copytree(elsewhere, two_runs / "other" / "a" / elsewhere.name)
    assert script("report", "--compare", "runs/a", "other/a", "--out", "page.html").code == 0

    headings = Page((two_runs / "page.html").read_text()).headings
    assert str(elsewhere) in headings[0]
    assert str(two_runs / "other" / "a" / elsewhere.name) in headings[0]

    refused = script("report", "--compare", "runs/a", str(elsewhere))
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "runs to compare must differ" in refused.err


def test_a_run_without_scalars_shows_the_rest(script, watched, tmp_path):
    assert script("train", *watched, "callbacks.scalars=null").code == 0
    assert script("report", "runs/smoke").code == 0
    assert "Loss histogram" in next(tmp_path.glob("runs/smoke/*/report.html")).read_text()


def test_the_curves_of_a_run_are_written_as_csv(two_runs, script):
    said = script("report", "runs/a", "--csv")
    assert said.code == 0, said.err
    (path,) = two_runs.glob("runs/a/*/metrics.csv")
    assert said.out.startswith(f"{path.relative_to(two_runs)}, ")

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    logged = [json.loads(line) for line in path.with_name("metrics.jsonl").open()]
    losses = {line["step"]: line["val/loss"] for line in logged if "val/loss" in line}
    assert {int(row["step"]): float(row["val/loss"]) for row in rows if row["val/loss"]} == losses

    script("report", "runs/a", "--csv", "--out", "mine.csv")
    assert (two_runs / "mine.csv").read_bytes() == path.read_bytes()


def test_the_newest_comes_first_and_the_others_can_be_opened():
    assert newest_first([]) == ""
    shown = newest_first([(2, "old"), (4, "new")])
    assert shown == "<p>step 4</p>new<details><summary>step 2</summary>old</details>"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a run, or several after --compare"),
        (["runs/a", "--compare", "runs/b"], "name a run, or several after --compare"),
        (["runs/none"], "runs/none does not exist; give a run folder"),
        (["my.txt"], "belongs to no run"),
        (["runs/a", "--out", "none/page.html"], "in a folder that exists, got none/page.html"),
        (["runs/a", "--out", "runs"], "--out must be a file in a folder that exists, got runs"),
        (["--compare", "runs/a", "runs/b", "--csv"], "--csv takes one run, without --compare"),
        (["binary"], "binary/config.yaml must be YAML of keys and plain values ("),
        (["damaged"], "damaged/metrics.jsonl must hold a JSON object with a step in each line"),
        (["of_old"], "of_old has no metrics.jsonl, which holds what a report shows"),
    ],
)
def test_mistakes_end_in_one_line(two_runs, script, arguments, message):
    configs = {"binary": b"\xff", "damaged": b"seed: 1", "of_old": b"seed: 1"}
    for name, config in configs.items():
        (two_runs / name).mkdir()
        (two_runs / name / "config.yaml").write_bytes(config)
    (metrics,) = two_runs.glob("runs/a/*/metrics.jsonl")
    shutil.copy(metrics, two_runs / "binary")
    (two_runs / "damaged" / "metrics.jsonl").write_bytes(b"\xff\n")

    result = script("report", *arguments)

    assert result.code == 2
    assert result.err.count("\n") == 1
    assert message in result.err


def test_a_folder_of_runs_means_the_newest_and_compared_all(two_runs, script, watched):
    before = script("report", "runs/b").out
    assert script("train", *watched, "name=b", "seed=3").code == 0
    said = script("report", "runs/b")
    assert said.out != before
    assert re.fullmatch(r"runs/b means its newest run, runs/b/\S+\n", said.err)

    # In a comparison the folder means all of its runs.
    said = script("report", "--compare", "runs/b", "runs/a")
    assert said.code == 0
    assert said.err == ""

    cells = [word.strip() for word in Page((two_runs / "compare.html").read_text()).texts]
    start = cells.index("seed")
    assert [cell for cell in cells[start:] if cell][1:4] == ["2", "3", "1"]
    assert script("report", "--compare", "runs").code == 2

    # In a comparison, a run of the folder that has nothing to show yet is left out.
    (two_runs / "runs" / "b" / "begun").mkdir()
    (two_runs / "runs" / "b" / "begun" / "config.yaml").write_text("seed: 4")
    said = script("report", "--compare", "runs/b")
    assert said.code == 0
    reason = "has no metrics.jsonl, which holds what a report shows"
    assert said.err == f"left out: runs/b/begun {reason}\n"
    assert script("report", "--compare", "runs/b/begun").code == 2
