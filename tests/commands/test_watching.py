"""TensorBoard shows what docs/watching.md documents, in its own reader."""

import re
import shlex
from itertools import product
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams import metadata

from gptmini.report.tags import COMPARED, LAYOUT
from gptmini.runs import read_lines
from run_folders import newest

GUIDE = (Path(__file__).parent.parent.parent / "docs" / "watching.md").read_text()


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
