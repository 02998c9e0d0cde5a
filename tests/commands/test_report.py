"""The page of gptmini report: complete, self-contained, safe, and about the right run."""

import csv
import re
from html.parser import HTMLParser

import pytest
import yaml
from matplotlib.figure import Figure

from browsers import opened_browser
from gptmini.report import png
from gptmini.report.tags import LAYOUT
from gptmini.runs import RunStatus, write_config, write_status
from gptmini.runs.run_folder import Identity
from gptmini.training.loggers.logger import MetricsLogger


class Page(HTMLParser):
    """Everything that a browser would load and display of a page."""

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
        if data.strip():
            self.texts.append(data)
        if self._open in ("h1", "h2") and data.strip():
            self.headings.append(data)


def write_run(folder, *, seed, losses):
    """Write a run folder with one validation after each step."""
    folder.mkdir(parents=True)
    config = {"name": folder.parent.name, "seed": seed, "model": {"n_layers": 2}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    logger = MetricsLogger(folder)
    for step, loss in enumerate(losses, start=1):
        logger.log_metrics({"val/loss": loss, "train/loss": 1.5}, step)
        logger.log_entry("samples", [f"sample {seed}, step {step}"], step)
    return folder


@pytest.fixture
def runs(tmp_path):
    """Return the folders of two runs with different seeds, in the working folder."""
    return [
        write_run(tmp_path / "runs" / "a" / "2026", seed=1, losses=[4.0, 0.25, 1.0]),
        write_run(tmp_path / "runs" / "b" / "2026", seed=2, losses=[3.0]),
    ]


def test_the_page_of_a_trained_run_has_everything_and_needs_nothing_else(script, watched, tmp_path):
    assert script("train", *watched, "folder=runs/a/2026").code == 0
    said = script("report", "runs/a")
    assert said.out.startswith("runs/a/2026/report.html, ")
    assert said.err == "using runs/a/2026, the latest run in runs/a for this command\n"

    # The page loads nothing.
    folder = tmp_path / "runs" / "a" / "2026"
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert all(reference.startswith("data:image/") for reference in page.references)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert "@import" not in text
    assert "url(" not in text

    # The page has every section and every picture.
    assert page.headings[1:] == [
        "Summary",
        *LAYOUT,
        "Samples",
        "Attention",
        "Model",
        "Data",
        "Configuration",
    ]
    n_charts = sum(len(charts) for charts in LAYOUT.values())
    drawings = [r for r in page.references if r.startswith("data:image/svg+xml;")]
    assert len(drawings) == n_charts - 2  # there is no bad step and no known peak
    pictures = [r for r in page.references if r.startswith("data:image/png;")]
    assert len(pictures) == 2  # one at the first validation, one at the last

    # The figures are those of the log.
    assert "blocks.*.attention.qkv.weight" in page.texts
    assert "trainer.val_every_steps" in page.texts
    best = re.search(r"best +val loss (\S+),", (folder / "train.log").read_text())[1]
    assert page.texts[page.texts.index("best val loss, nats per token") + 1] == best


def test_runs_are_laid_over_each_other_with_what_differs(runs, script, tmp_path):
    said = script("report", "--compare", "runs/a", "runs/b", "--out", "page.html")
    assert said.out.startswith("page.html, ")

    page = Page((tmp_path / "page.html").read_text())
    differs = "Configuration differences"
    assert page.headings[:3] == ["a and b", "Summary", differs]
    start = page.texts.index(differs)
    assert page.texts[start + 1 : start + 9] == ["a", "b", "name", "a", "b", "seed", "1", "2"]
    samples = [text for text in page.texts if text.startswith("sample ")]
    assert samples == ["sample 1, step 3", "sample 2, step 1"]  # the latest of each


def test_a_page_has_the_date_and_fits_a_phone_in_the_dark(runs, script):
    logger = MetricsLogger(runs[0])
    logger.log_entry("setup/config", [["key", "value"], ["a" * 90, "b" * 90]], 3)
    logger.log_entry("zoom/attention", png(Figure(figsize=(10, 1))), 3)
    write_config("seed: 1\n", runs[0], [], Identity("2026-11-28_14-59-36.316389", "a"))
    write_status(runs[0], RunStatus(state="done", step=3, seconds=3600))
    assert script("report", "runs/a").code == 0
    texts = Page((runs[0] / "report.html").read_text()).texts
    assert texts[texts.index("started") + 1] == "2026-11-28 14:59"
    assert texts[texts.index("duration of the last start") + 1] == "1 h 00 min"

    with opened_browser() as browser:
        size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        dark = {"name": "prefers-color-scheme", "value": "dark"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [dark]})
        browser.get((runs[0] / "report.html").as_uri())
        style = "getComputedStyle(document.body)"
        read = (
            f"return [document.documentElement.scrollWidth, {style}.color, {style}.backgroundColor]"
        )
        width, *colors = browser.execute_script(read)
        shrunk = (
            "return [...document.images].filter(image => image.clientWidth < image.naturalWidth)"
        )
        images = browser.execute_script(f"{shrunk}.map(image => image.alt)")
    assert images == []
    assert (width, colors) == (390, ["rgb(230, 237, 243)", "rgb(13, 17, 23)"])


def test_what_a_model_writes_is_text_in_the_page(runs, script):
    logger = MetricsLogger(runs[0])
    logger.log_entry("samples", ["<script>alert(1)</script>\n# no heading", "second"], 9)
    logger.log_entry("setup/config", [["key"], ["<img src=x onerror=y>|*a*"]], 9)
    assert script("report", "runs/a").code == 0

    page = Page((runs[0] / "report.html").read_text())
    assert "script" not in page.tags
    assert all(reference.startswith("data:image/") for reference in page.references)
    assert "<script>alert(1)</script>\n# no heading" in "".join(page.texts)
    assert "<img src=x onerror=y>|*a*" in page.texts


def test_the_curves_of_a_killed_run_are_written_as_csv(runs, script):
    metrics = runs[0] / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"step": 4, "val/lo')  # killed during a write
    said = script("report", "runs/a", "--csv")
    assert said.out.startswith("runs/a/2026/metrics.csv, ")
    with (runs[0] / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert [(row["step"], row["val/loss"]) for row in rows] == [
        ("1", "4.0"),
        ("2", "0.25"),
        ("3", "1.0"),
    ]


def test_a_link_in_a_strangers_run_is_not_embedded(runs, script, tmp_path):
    (tmp_path / "secret.png").write_bytes(b"secret")
    (runs[0] / "pictures").mkdir()
    (runs[0] / "pictures" / "zoom_attention-1.png").symlink_to(tmp_path / "secret.png")
    script("report", "runs/a").assert_refused("zoom_attention-1.png")
    assert not (runs[0] / "report.html").exists()


def test_a_folder_of_runs_means_the_newest_and_compared_all(runs, script, tmp_path):
    write_run(tmp_path / "runs" / "b" / "2027", seed=3, losses=[2.0])
    said = script("report", "runs/b")
    assert said.err == "using runs/b/2027, the latest run in runs/b for this command\n"

    # A comparison skips a run of the folder that has nothing to show yet, or failed before its first step.
    (tmp_path / "runs" / "b" / "begun").mkdir()
    (tmp_path / "runs" / "b" / "begun" / "config.yaml").write_text("seed: 4")
    failed = write_run(tmp_path / "runs" / "b" / "failed", seed=5, losses=[])
    MetricsLogger(failed).log_entry("setup/model", [["weight"], ["embedding"]], 0)
    said = script("report", "--compare", "runs/b", "runs/a")
    skipped = sorted(said.err.splitlines())
    assert re.fullmatch(r"skipped: runs/b/begun .*metrics\.jsonl.*", skipped[0])
    assert re.fullmatch(r"skipped: runs/b/failed .*train\.log.*", skipped[1])
    assert len(skipped) == 2
    page = Page((tmp_path / "compare.html").read_text())
    assert page.headings[0] == "b/2026 and b/2027 and a/2026"
    script("report", "--compare", "runs/a", "runs/b/failed").assert_refused("runs/b/failed")

    # The page of this run alone shows the model.
    said = script("report", "runs/b/failed")
    assert re.fullmatch(r"note: runs/b/failed .*train\.log.*\n", said.err)
    assert "embedding" in Page((failed / "report.html").read_text()).texts
