"""Each logged entry is a line of metrics.jsonl. TensorBoard and metrics.csv repeat these lines after any resume."""

import csv
import io
import json
import math
import os
import time

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from full_disk import files_of_at_most
from gptmini.report.tables import csv_of
from gptmini.runs import curves_of, read_lines
from gptmini.runs.metrics import dropping_later_lines
from gptmini.system.errors import UserError
from gptmini.training.callbacks.scalars import Scalars
from gptmini.training.loggers.logger import MetricsLogger
from gptmini.training.loggers.tensorboard import EventLogger

PNG = bytes.fromhex(  # of one white pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c63f8"
    "0f0001010100b138f6140000000049454e44ae426082"
)


@pytest.fixture
def logger(tmp_path):
    return MetricsLogger(tmp_path)


def written(folder):
    """Steps and tags of every line, read with Python's json."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").open(encoding="utf-8")]
    for line in lines:
        assert abs(line.pop("time") - time.time()) < 600
    return lines


def write(folder, *lines, end=""):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + end)


def test_every_scalar_is_that_of_the_event_files(train, tmp_path):
    loggers = [EventLogger(tmp_path), MetricsLogger(tmp_path)]
    train(callbacks=[Scalars(every_steps=2)], loggers=loggers)
    events = EventAccumulator(str(tmp_path)).Reload()

    curves = curves_of(read_lines(tmp_path))
    assert set(curves) == set(events.Tags()["scalars"])
    assert [step for step, _ in curves["train/loss"]] == [1, 2, 3, 4, 6]
    assert [step for step, _ in curves["val/loss"]] == [3, 6]
    for tag, points in curves.items():
        rounded = [(step, np.float32(value)) for step, value in points]
        assert rounded == [(event.step, np.float32(event.value)) for event in events.Scalars(tag)]


def test_a_line_is_there_as_soon_as_it_is_logged(logger, tmp_path):
    logger.log_metrics({"loss": 0.1, "count": torch.tensor(3), "norm": np.float64(math.inf)}, 1)
    assert written(tmp_path) == [{"step": 1, "loss": 0.1, "count": 3, "norm": math.inf}]

    logger.log_metrics({"left out": 1.0})  # it has no step
    logger.log_entry("samples", ["a\nb", "中\u2028"], 2)
    logger.log_entry("zoom/table", [["token", "times"], ["|", "3"]], 2)
    logger.log_entry("zoom/a b", PNG, 2)
    assert written(tmp_path)[1:] == [
        {"step": 2, "samples": ["a\nb", "中\u2028"]},
        {"step": 2, "zoom/table": [["token", "times"], ["|", "3"]]},
        {"step": 2, "zoom/a b": {"picture": "zoom_a_b-2.png"}},
    ]
    assert (tmp_path / "pictures" / "zoom_a_b-2.png").read_bytes() == PNG


LINES = [
    {"step": 0, "setup/config": [["seed", "1"]]},
    {"step": 2, "train/loss": 5.0},
    {"step": 4, "train/loss": 4.0, "val/gap": 0.5},
    {"step": 4, "val/loss": 4.5},
    {"step": 4, "samples": ["four"]},
    {"step": 4, "zoom/a": {"picture": "zoom_a-4.png"}},
    {"step": 6, "train/loss": 3.0},
    {"step": 6, "zoom/a": {"picture": "../zoom_a-6.png"}},  # its folder does not count
]


@pytest.mark.parametrize(
    ("step", "validated", "expected", "pictures"),
    [
        (9, True, LINES, {"zoom_a-4.png", "zoom_a-6.png"}),
        (5, True, LINES[:6], {"zoom_a-4.png"}),
        (4, True, LINES[:6], {"zoom_a-4.png"}),
        (4, False, [*LINES[:2], {"step": 4, "train/loss": 4.0}], set()),
        (-1, False, [], set()),
    ],
)
def test_a_run_that_goes_back_keeps_what_it_logged_up_to_its_step(
    logger, tmp_path, step, validated, expected, pictures
):
    (tmp_path / "pictures").mkdir()
    for name in ("zoom_a-4.png", "zoom_a-6.png", "zoom_b-6.png", ".zoom_b-6.png.0123.tmp"):
        (tmp_path / "pictures" / name).write_bytes(PNG)
    write(tmp_path, *LINES, end='{"step": 8, "train/lo')  # written by a process that was killed

    # After an error inside the block, the file is unchanged.
    with pytest.raises(OSError, match="full"), dropping_later_lines(tmp_path, 2, validated=True):
        raise OSError(28, "full", "last.ckpt")
    assert read_lines(tmp_path) == LINES

    with dropping_later_lines(tmp_path, step, validated=validated) as lines:
        assert lines == expected
    assert read_lines(tmp_path) == expected
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == pictures

    # The logger of the resumed run appends to the same file.
    logger.log_metrics({"val/loss": 1.0}, 10)
    assert read_lines(tmp_path)[-1]["val/loss"] == 1.0
    assert len(read_lines(tmp_path)) == len(expected) + 1


def test_one_tag_can_be_read_without_the_other_lines(tmp_path):
    names_it = {"step": 5, "setup/config": [["monitor", "val/loss"]]}
    write(tmp_path, names_it, *LINES, end='{"step": 8')
    assert read_lines(tmp_path, having="val/loss") == [LINES[3]]

    (tmp_path / "metrics.jsonl").unlink()
    assert read_lines(tmp_path) == []


@pytest.mark.parametrize("end", [b"\0" * 2**26, b"[" * 100_000 + b"\n"], ids=["long", "deep"])
def test_a_line_that_no_run_writes_is_refused_in_bounded_memory(tmp_path, end):
    write(tmp_path, *LINES)
    with (tmp_path / "metrics.jsonl").open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(end)
        file.truncate(2**33)  # a sparse file of 8 GiB
    with pytest.raises(UserError, match=f"line {len(LINES) + 1} "):
        read_lines(tmp_path)


def test_a_full_disk_costs_lines_but_leaves_no_part_of_one_and_is_told_once(tmp_path):
    told = []
    logger = MetricsLogger(tmp_path)
    logger.on_error = told.append
    for step in (1, 2, 3):
        logger.log_metrics({"loss": step}, step)

    # The system accepts only six more bytes, less than a line.
    with files_of_at_most((tmp_path / "metrics.jsonl").stat().st_size + 6):
        for step in (4, 5):
            logger.log_metrics({"loss": step}, step)
        logger.log_entry("zoom/a", PNG * 9, 5)
        logger.save()
    logger.log_metrics({"loss": 6}, 6)

    assert [line.endswith("File too large") for line in told] == [True]
    assert [line["step"] for line in written(tmp_path)] == [1, 2, 3, 6]
    with pytest.raises(OSError, match="No such file"):
        MetricsLogger(tmp_path / "none").log_metrics({"loss": 1.0}, 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_events_end_at_the_first_error_of_the_disk_and_are_made_good_by_a_resume(tmp_path):
    told = []
    events = EventLogger(tmp_path)
    events.on_error = told.append
    loggers = [events, MetricsLogger(tmp_path)]
    for logger in loggers:
        logger.log_metrics({"loss": 1.0}, 1)
        logger.save()

    with files_of_at_most(300):
        for step in range(2, 40):
            events.log_metrics({"loss": 1.0}, step)
            events.save()
    for logger in loggers:
        logger.log_metrics({"loss": 2.0}, 40)
        logger.finalize("success")
    assert [line.endswith("File too large") for line in told] == [True]
    assert 40 not in [
        event.step for event in EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    ]

    events = EventLogger(tmp_path)
    events.rewrite(read_lines(tmp_path))
    events.finalize("success")
    points = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [(event.step, event.value) for event in points] == [(1, 1.0), (40, 2.0)]


def log_all(loggers, steps, *, start):
    """Log what a run logs in these steps, as start number `start`."""
    for logger in loggers:
        if start == 1:
            logger.log_entry("setup/config", [["seed"], ["1"]], 0)
        for step in steps:
            logger.log_metrics({"often": float(step)}, step)
            if step == 25:
                logger.log_metrics({"rare": 1.0}, step)
            if step % 10 == 0:
                logger.log_metrics({"val/loss": step + start / 4}, step)
                logger.log_entry("samples", [f"start {start}, step {step}"], step)
                logger.log_entry("zoom/a", PNG, step)
    events, _ = loggers
    events.log_layout()
    events.log_comparison({"start": start}, ["start"], [])
    for logger in loggers:
        logger.finalize("success")


def test_tensorboard_shows_a_run_that_went_back_as_if_it_had_never_been_further(tmp_path):
    log_all([EventLogger(tmp_path), MetricsLogger(tmp_path)], range(1, 31), start=1)
    with dropping_later_lines(tmp_path, 12, validated=True) as lines:
        pass
    events = EventLogger(tmp_path)
    events.rewrite(lines)
    log_all([events, MetricsLogger(tmp_path)], range(13, 22), start=2)

    everything = {"scalars": 0, "tensors": 0, "images": 0}
    slow = EventAccumulator(str(tmp_path), size_guidance=everything).Reload()
    steps = {tag: [event.step for event in slow.Scalars(tag)] for tag in slow.Tags()["scalars"]}
    assert steps == {"often": list(range(1, 22)), "val/loss": [10, 20]}
    texts = {tag: [event.step for event in slow.Tensors(tag)] for tag in slow.Tags()["tensors"]}
    assert texts == {
        "custom_scalars__config__": [0],
        "setup/config/text_summary": [0],
        "samples/text_summary": [10, 20],
    }
    newest = slow.Tensors("samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert newest == "    start 2, step 20"  # a block of code in Markdown
    assert [event.step for event in slow.Images("zoom/a")] == [10, 20]
    entry = slow.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = metadata.parse_session_start_info_plugin_data(entry).hparams["start"]
    assert start.number_value == 2


def test_the_table_in_csv_has_a_row_for_each_step_and_a_column_for_each_tag():
    lines = [
        {"step": 0, "time": 1.5, "setup/config": [["seed", "1"]]},
        {"step": 1, "time": 2.5, "loss, mean": 0.1, "count": 3},
        {"step": 3, "time": 3.5, "loss, mean": math.nan},
        {"step": 2, "time": 4.5, "count": 5},
        {"step": 3, "time": 5.5, "val/loss": -math.inf},
        {"step": 3, "time": 6.5, "samples": ["text"]},
    ]
    text = csv_of(lines)
    assert text == 'step,"loss, mean",count,val/loss\n1,0.1,3,\n2,,5,\n3,nan,,-inf\n'

    rows = list(csv.DictReader(io.StringIO(text), strict=True))
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert float(rows[0]["loss, mean"]) == 0.1
    assert math.isnan(float(rows[2]["loss, mean"]))
    assert csv_of([]) == "step\n"
    assert curves_of(lines)["count"] == [(1, 3), (2, 5)]


@pytest.mark.parametrize("line", ["", "\xff", "3", '{"step": "1"}', '{"loss": 1.0}'])
def test_a_line_that_no_run_wrote_is_refused_and_the_file_left_as_it_is(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1, "loss": 2.0}}\n{line}\n', encoding="latin-1")
    before = path.read_bytes()
    message = r"line 2 of .*metrics\.jsonl .*step"
    with pytest.raises(UserError, match=message), dropping_later_lines(tmp_path, 1, validated=True):
        pass
    assert path.read_bytes() == before
