"""The scalars of a run in metrics.csv are those that TensorBoard reads, in whole rows, however the run went on."""

import csv

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gptmini.training import EventLogger, MetricsLogger, Scalars
from gptmini.training.monitoring import metrics
from gptmini.training.monitoring.metrics import dropping_later_rows
from gptmini.user_error import UserError


def read(folder):
    """Headings and rows, by Python's own reader."""
    with (folder / "metrics.csv").open(newline="") as file:
        reader = csv.DictReader(file, strict=True)
        rows = list(reader)
    return reader.fieldnames, rows


@pytest.fixture
def logger(tmp_path):
    return MetricsLogger(str(tmp_path))


def test_every_scalar_is_that_of_the_event_files(train, tmp_path):
    train(
        callbacks=[Scalars(every_steps=2)],
        loggers=[EventLogger(str(tmp_path)), MetricsLogger(str(tmp_path))],
    )
    events = EventAccumulator(str(tmp_path)).Reload()
    headings, rows = read(tmp_path)

    assert headings[0] == "step"
    assert set(headings[1:]) == set(events.Tags()["scalars"])
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4, 6]
    for tag in headings[1:]:
        points = [(int(row["step"]), np.float32(row[tag])) for row in rows if row[tag]]
        assert points == [(event.step, np.float32(event.value)) for event in events.Scalars(tag)]


def test_a_reader_sees_whole_rows_under_a_heading_that_names_every_column(logger, tmp_path):
    seen = []
    for step in range(1, 6):
        logger.log_metrics({"train/loss": step / 3}, step)
        if step % 2 == 0:
            logger.log_metrics({"val/loss, mean": torch.tensor(step / 4)}, step)
        if step > 1:
            seen.append(read(tmp_path))
    logger.finalize("success")

    assert [len(rows) for _, rows in seen] == [1, 2, 3, 4]
    headings, rows = read(tmp_path)
    assert headings == ["step", "train/loss", "val/loss, mean"]
    assert [float(row["train/loss"]) for row in rows] == [step / 3 for step in range(1, 6)]
    assert [row["val/loss, mean"] for row in rows] == ["", "0.5", "", "1.0", ""]
    assert None not in {cell for row in rows for cell in row.values()}


def test_rows_that_come_late_are_put_in_their_place(logger, tmp_path):
    for step in (1, 4, 6):
        logger.log_metrics({"loss": step}, step)
    logger.save()
    logger.log_metrics({"gap": 0.5}, 6)  # of a step that is written already
    logger.log_metrics({"loss": 3}, 3)
    logger.save()

    _, rows = read(tmp_path)
    shown = [(row["step"], row["loss"], row["gap"]) for row in rows]
    assert shown == [("1", "1", ""), ("3", "3", ""), ("4", "4", ""), ("6", "6", "0.5")]


def test_the_file_is_written_anew_only_for_a_new_column(logger, tmp_path):
    numbers = set()
    for step in range(1, 50):
        logger.log_metrics({"loss": step}, step)
        if step > 1:
            numbers.add((tmp_path / "metrics.csv").stat().st_ino)
    assert len(numbers) == 1


def test_a_file_that_was_moved_away_during_a_run_is_begun_anew(logger, tmp_path):
    for step in (1, 2):
        logger.log_metrics({"loss": step}, step)
    logger.save()
    (tmp_path / "metrics.csv").rename(tmp_path / "moved.csv")
    for step in (3, 4, 5):
        logger.log_metrics({"loss": step}, step)
    logger.save()

    _, rows = read(tmp_path)
    assert [row["step"] for row in rows] == ["3", "4", "5"]


@pytest.mark.parametrize(
    ("step", "validated", "expected"),
    [
        (9, True, [("2", "5.0", ""), ("4", "4.0", "4.5"), ("6", "3.0", "3.5")]),
        (5, True, [("2", "5.0", ""), ("4", "4.0", "4.5")]),
        (4, True, [("2", "5.0", ""), ("4", "4.0", "4.5")]),
        (4, False, [("2", "5.0", ""), ("4", "4.0", "")]),
        (-1, False, []),
    ],
)
def test_a_run_that_goes_back_keeps_the_rows_up_to_its_step(
    logger, tmp_path, step, validated, expected
):
    for number, loss in ((2, 5.0), (4, 4.0), (6, 3.0)):
        logger.log_metrics({"train/loss": loss}, number)
        if number > 2:
            logger.log_metrics({"val/loss": loss + 0.5}, number)
    logger.finalize("success")
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("8,2.")  # by a process that was killed

    with dropping_later_rows(tmp_path, step, validated=validated):
        pass
    _, rows = read(tmp_path)
    assert [tuple(row.values()) for row in rows] == expected

    # The logger of the resumed run goes on in the same file.
    again = MetricsLogger(str(tmp_path))
    again.log_metrics({"val/loss": 1.0}, 10)
    again.finalize("success")
    headings, rows = read(tmp_path)
    assert headings == ["step", "train/loss", "val/loss"]
    assert tuple(rows[-1].values()) == ("10", "", "1.0")


def test_a_full_disk_costs_no_row_and_leaves_no_part_of_one(tmp_path, monkeypatch):
    told = []
    logger = MetricsLogger(str(tmp_path), on_failure=told.append)
    monkeypatch.setattr(metrics, "RETRY_SECONDS", 0.0)
    for step in (1, 2, 3):
        logger.log_metrics({"loss": step}, step)

    # The file system itself refuses: it takes six more bytes, which is less than a row.
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "metrics.csv").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 6, before[1]))
    try:
        for step in (10000, 10001, 10002):
            logger.log_metrics({"loss": step}, step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert told == ["File too large"] * 2
    assert [row["step"] for row in read(tmp_path)[1]] == ["1", "2", "3"]

    logger.finalize("success")
    steps = [row["step"] for row in read(tmp_path)[1]]
    assert steps == ["1", "2", "3", "10000", "10001", "10002"]


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\n", b"step,a\n1\n", b"step,a\nx,2\n", b'step,a\n"1,2\n', b"\0\n1\n"]
)
def test_a_file_that_no_run_wrote_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    with (
        pytest.raises(UserError, match=r"metrics\.csv must hold a row for each step.*move it away"),
        dropping_later_rows(tmp_path, 1, validated=True),
    ):
        pass
    assert path.read_bytes() == content
