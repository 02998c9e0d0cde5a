"""TensorBoard shows what docs/watching.md documents, in its own reader and in a real browser."""

import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from itertools import product
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams import metadata

from gptmini.report.tags import COMPARED, LAYOUT
from gptmini.runs import curves_of, read_lines
from run_folders import newest

GUIDE = (Path(__file__).parent.parent.parent / "docs" / "watching.md").read_text()
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")


def documented():
    """Tags in the guide's table, of every run and of some runs. a{b,c} means ab and ac."""
    section = GUIDE.partition("## Tags")[2].partition("\n## ")[0]
    always, sometimes = set(), set()
    for first, when in re.findall(r"^\| (`.*?) \| .* \| (.*) \|$", section, re.MULTILINE):
        tags = always if when == "always" else sometimes
        for pattern in re.findall(r"`(.*?)`", first):
            tags.update(expanded(pattern))
    return always, sometimes


def expanded(pattern):
    """Expand a pattern of tags: a{b,c} is ab and ac."""
    choices = []
    for braced, plain in re.findall(r"\{(.*?)\}|([^{}]+)", pattern):
        choices.append(braced.split(",") if braced else [plain])
    return {"".join(parts) for parts in product(*choices)}


def test_the_settings_of_the_guide_are_typed_as_they_stand(script):
    section = GUIDE.partition("## What is written when")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| .* \|$", section, re.MULTILINE)
    typed = [code for row in rows for code in re.findall(r"`(.*?)`", row)]
    assert "logger=none" in typed
    # Every line from the headings to the last row belongs to the table.
    table = section.strip().partition("\n\n")[0]
    assert len(table.splitlines()) == len(rows) + 2

    for code in typed:
        (override,) = shlex.split(code)  # as a shell reads it
        assert script("train", override, "--cfg", "job").code == 0, override


def read_events(folder):
    """Everything in a run's event files, from TensorBoard's own reader."""
    everything = {"scalars": 0, "tensors": 0, "images": 0}
    return EventAccumulator(str(folder), size_guidance=everything).Reload()


@pytest.fixture
def folder(script, watched, once):
    """The folder of a run that writes everything that a run on one device can write."""
    overrides = (
        "optimizer.lr=0.02",
        "model.smear=1",
        "callbacks.scalars.peak_tflops=0.1",
        "callbacks.samples.prompts=['',Line]",
    )
    assert once("watched", lambda: script("train", *watched, *overrides)).result.code == 0
    return newest()


def test_a_run_writes_every_documented_tag_and_no_other(folder):
    read = read_events(folder)
    tags = read.Tags()
    texts = {tag.removesuffix("/text_summary") for tag in tags["tensors"]} - {
        "custom_scalars__config__"
    }
    always, sometimes = documented()
    found = {*tags["scalars"], *tags["images"], *texts}
    assert found == {tag for line in read_lines(folder) for tag in line} - {"step", "time"}
    assert always - found == set()
    assert found - always - sometimes == set()
    assert sometimes - found == {
        "train/bad_steps",
        "weights/norm/norm",
        "weights/update_ratio/norm",
    }
    for tag in tags["scalars"]:
        steps = [event.step for event in read.Scalars(tag)]
        assert steps == sorted(set(steps))
        assert set(steps) <= {1, 2, 3, 4}
    for tag in tags["images"]:
        assert [event.step for event in read.Images(tag)] == [2, 4]
    assert [event.step for event in read.Tensors("samples/text_summary")] == [2, 4]
    samples = read.Tensors("samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert samples.split("\n\n---\n\n")[1].startswith("    Line")


def test_the_layout_names_only_tags_that_are_written_and_all_of_them(folder):
    read = read_events(folder)
    (event,) = read.Tensors("custom_scalars__config__")
    layout = Layout.FromString(event.tensor_proto.string_val[0])
    charts = {
        chart.title: list(chart.multiline.tag)
        for category in layout.category
        for chart in category.chart
    }
    assert [category.title for category in layout.category] == list(LAYOUT)
    scalars = {*read.Tags()["scalars"], "train/bad_steps"}
    shown = {
        name: {t for t in scalars for pattern in patterns if re.match(pattern, t)}
        for name, patterns in charts.items()
    }
    assert [name for name, tags in shown.items() if not tags] == []
    assert set.union(*shown.values()) == scalars


def hparams_of(folder):
    """The values of a run in HParams, by name."""
    content = read_events(folder).SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data
    return metadata.parse_session_start_info_plugin_data(content.content).hparams


def test_hparams_compares_by_what_was_measured_and_changed_also_by_a_resume(script, folder):
    read = read_events(folder)
    content = read.SummaryMetadata(metadata.EXPERIMENT_TAG).plugin_data.content
    experiment = metadata.parse_experiment_plugin_data(content)
    assert [info.name.tag for info in experiment.metric_infos] == list(COMPARED)
    columns = {info.name: info.differs for info in experiment.hparam_infos}
    assert columns["optimizer.lr"]
    assert not columns["seed"]
    assert "hp_metric" not in read.Tags()["scalars"]

    values = hparams_of(folder)
    assert values["optimizer.lr"].number_value == 0.02
    assert values["model.n_layers"].number_value == 1

    assert script("train", "resume=runs/latest", "trainer.max_steps=6").code == 0
    values = hparams_of(folder)
    assert values["trainer.max_steps"].number_value == 6
    overrides = values["overrides"].string_value
    assert "optimizer.lr=0.02 " in overrides
    assert overrides.endswith(" trainer.max_steps=6")
    assert "resume=" not in overrides
    tables = read_events(folder).Tensors("setup/config/text_summary")
    assert [event.step for event in tables] == [0, 4]  # logged again, because it has changed


@pytest.fixture
def page(script, watched, tmp_path):
    """A browser on TensorBoard with two runs. open(tab) opens one of its pages."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium, a dev dependency, drives the browser"
    )
    if not BROWSER or not DRIVER:
        pytest.skip("Debian's packages chromium and chromium-driver must be installed")
    more = ["callbacks.samples.max_new_tokens=400"]  # long enough to contain a word
    for override in ("optimizer.lr=0.02", "optimizer.lr=0.01"):
        assert script("train", *watched, "name=watched", *more, override).code == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = f"{sys.executable} -m tensorboard.main --logdir runs --host 127.0.0.1 --port {port}"
    process = subprocess.Popen(
        command.split(), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in [
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "window-size=1400,1000",
    ]:
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: urllib.request.urlopen(f"{url}/data/runs").read().count(b"watched/") == 2)

        def go(tab):
            driver.get("about:blank")
            driver.get(f"{url}/#{tab}")
            return driver

        yield go
    finally:
        driver.quit()
        process.kill()
        process.wait()


def wait_for(condition, seconds=60):
    """Wait until a condition holds. Ignore exceptions until then."""
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except Exception:
            if time.monotonic() > end:
                raise
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.3)


DEEP = """
const found = [];
const walk = node => {
  if (node.matches && node.matches(arguments[0])) found.push(node);
  if (node.shadowRoot) walk(node.shadowRoot);
  if (node.tagName === 'IFRAME' && node.contentDocument) walk(node.contentDocument);
  node.childNodes.forEach(walk);
};
walk(document);
"""


def text_of(driver):
    """All text on the page, including text in shadow roots."""
    return "\n".join(
        driver.execute_script(
            DEEP + "return found.map(node => node.innerText || node.textContent);",
            "body, div, span",
        )
    )


def drawn(driver, selector):
    """Number of elements with a drawing: canvases with ink, or lines of an SVG."""
    script = """
      return found.filter(node => node.tagName === 'CANVAS'
        ? node.width && node.height && node.toDataURL().length > 2000
        : (node.getAttribute('d') || '').length > 20).length;"""
    return driver.execute_script(DEEP + script, selector)


def test_a_browser_shows_curves_layout_samples_maps_runs_and_embedding(page, tmp_path):
    runs = [path.parent for path in tmp_path.glob("runs/watched/*/config.yaml")]
    losses = {f"{dict(curves_of(read_lines(run))['val/loss'])[4]:.4f}" for run in runs}
    said = (runs[0] / "train.log").read_text().partition("\nsample ")[2].partition("\nnext ")[0]
    # The log shows control characters as escapes, so look for letters.
    sample = max(re.findall("[A-Za-z]+", said), key=len)
    assert len(sample) > 2
    driver = page("timeseries")
    wait_for(lambda: re.search(r"train\s+/loss", text_of(driver)))
    wait_for(lambda: drawn(driver, "canvas") >= 4)

    driver = page("custom_scalars")
    wait_for(lambda: all(category in text_of(driver) for category in LAYOUT))
    wait_for(lambda: all(chart in text_of(driver) for chart in LAYOUT["Is it learning?"]))
    wait_for(lambda: drawn(driver, "path.line") >= 4)  # both losses of both runs

    driver = page("text")
    wait_for(lambda: "samples/text_summary" in text_of(driver))
    wait_for(lambda: sample in text_of(driver))

    driver = page("images")
    loaded = "return found.filter(node => node.naturalWidth >= 300).length;"
    wait_for(lambda: "zoom/attention" in text_of(driver))
    wait_for(lambda: driver.execute_script(DEEP + loaded, "img") >= 2)  # one of each run

    driver = page("hparams")
    wait_for(lambda: len(set(re.findall(r"watched/[\d_-]+", text_of(driver)))) == 2)
    wait_for(lambda: {"optimizer.lr", *COMPARED, *losses} <= set(text_of(driver).split()))
