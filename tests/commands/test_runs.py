"""gptmini runs lists every run with its overrides, steps and best loss."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from commands.resuming.kills import killed
from gptmini.runs.run_folder import locked


@pytest.fixture
def two_runs(script, short, once):
    """A finished run, and a run that was stopped after its first step."""

    def train():
        kept_to_itself = ("name=done", "trainer.threads=1")
        assert script("train", *short, *kept_to_itself, "optimizer.lr=0.02").code == 0
        assert script("train", *short, "name=cut", "trainer.max_time=1e-3").code == 0

    once("runs listed", train)
    (done,) = Path("runs/done").iterdir()
    (cut,) = Path("runs/cut").iterdir()
    return done, cut


def row_of(result, run):
    """Return the cells of a run's row."""
    (line,) = [line for line in result.out.splitlines() if line.startswith(f"{run} ")]
    return re.split(r" {2,}", line)


def best_of(run):
    """Return the lowest validation loss in the run's event files, as TensorBoard reads them."""
    events = EventAccumulator(str(run)).Reload()
    best = min(events.Scalars("val/loss"), key=lambda event: event.value)
    bits = {event.step: event.value for event in events.Scalars("val/bits_per_byte")}
    return f"{best.value:.4f}", f"{bits[best.step]:.4f}"


def test_each_run_has_its_state_step_best_loss_and_what_was_typed(script, short, two_runs):
    done, cut = two_runs
    result = script("runs")
    assert result.code == 0, result.err
    name, state, step, *figures, changed = row_of(result, done)
    assert name == str(done)
    assert (state, step) == ("done", "4 of 4")
    assert tuple(figures) == best_of(done)
    assert changed == " ".join([*short, "optimizer.lr=0.02"])

    name, state, step, *_, changed = row_of(result, cut)
    assert (state, step) == ("stopped by the time limit", "1 of 4")
    assert changed.endswith("trainer.max_time=1e-3")
    # latest is a link to the newest run, not another run.
    assert len(result.out.splitlines()) == 3


# Lightning's class, which ends the run because the loss has not fallen by a nat.
STOP = (
    "+callbacks.stop={_target_: lightning.pytorch.callbacks.EarlyStopping, "
    "monitor: val/loss, patience: 1, min_delta: 1.0}"
)
LONG = ("trainer.max_steps=9", "trainer.val_every_steps=1", "callbacks.scalars.every_steps=5")


def test_a_run_that_a_callback_ended_says_so_and_is_complete(script, short):
    typed = (*short, *LONG, STOP, "optimizer.lr=1e-9", "folder=runs/early")
    assert script("train", *typed).code == 0
    assert row_of(script("runs"), "runs/early")[1:3] == ["ended by EarlyStopping", "2 of 9"]

    # A scheduler may repeat the command; it does not train further.
    result = script("train", *typed)
    assert result.code == 0, result.err
    said = "done     runs/early was ended by EarlyStopping at step 2; "
    assert result.out.startswith(said)
    assert row_of(script("runs"), "runs/early")[1:3] == ["ended by EarlyStopping", "2 of 9"]

    # More steps, or resume=, train further.
    assert "step 3/20" in script("train", *typed, "trainer.max_steps=20").out
    assert "step 4/20" in script("train", "resume=runs/early", STOP).out


def test_a_killed_run_is_at_the_step_of_its_checkpoint(script, short):
    typed = (*short, "trainer.max_steps=9", "callbacks.checkpoints.every_steps=3")
    with killed(5, "on_train_batch_end"):
        script("train", *typed, "folder=runs/killed")
    # last.ckpt has step 3 and best.ckpt step 4, so the run resumes from best.ckpt.
    assert row_of(script("runs"), "runs/killed")[1:3] == ["killed", "4 of 9"]

    # While it trains, the latest point of its curves counts.
    with locked(Path("runs/killed")):
        assert row_of(script("runs"), "runs/killed")[1:3] == ["running", "5 of 9"]

    # A finished run that is extended and then killed is no longer done.
    assert script("train", "folder=runs/killed", "trainer.max_steps=6").code == 0
    assert row_of(script("runs"), "runs/killed")[1:3] == ["done", "6 of 6"]
    with killed(7, "on_train_batch_end"):
        script("train", "folder=runs/killed", "trainer.max_steps=9")
    assert row_of(script("runs"), "runs/killed")[1:3] == ["killed", "6 of 9"]


def test_runs_are_sorted_by_bits_per_byte_or_by_when_they_began(script, two_runs):
    def validate(run, loss, bits):
        with (run / "metrics.jsonl").open("a") as file:
            line = {"step": 4, "val/loss": loss, "val/bits_per_byte": bits}
            file.write(json.dumps(line) + "\n")

    # The third run has shorter tokens: a lower loss, but more bits per byte.
    done, cut = two_runs
    other = done.with_name("2099-01-01_00-00-00")
    shutil.copytree(done, other)
    validate(done, 0.5, 0.25)
    validate(other, 0.4, 0.3)

    by_time = [line.split()[0] for line in script("runs").out.splitlines()[1:]]
    assert by_time == [str(done), str(other), str(cut)]  # a copy keeps the start of its run
    by_loss = script("runs", "--sort", "loss").out.splitlines()[1:]
    assert [line.split()[0] for line in by_loss] == [str(done), str(other), str(cut)]
    assert len(script("runs", "runs/cut").out.splitlines()) == 2
    assert len(script("runs", str(cut)).out.splitlines()) == 2


def columns_of(text):
    """Return the cells of each row of a table by heading. The columns start where the headings start."""
    heading, *lines = text.splitlines()
    starts = [match.start() for match in re.finditer(r"(?<=  )\S|^\S", heading)]
    places = [*zip(starts, [*starts[1:], None], strict=True)]
    names, *rows = [
        [line[start:end].strip() for start, end in places] for line in (heading, *lines)
    ]
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_the_table_fits_a_terminal_and_is_complete_with_wide(script, two_runs, monkeypatch):
    done, cut = two_runs
    piped = script("runs").out
    assert max(map(len, piped.splitlines())) > 140

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for width in (60, 80, 100, 140):
        monkeypatch.setenv("COLUMNS", str(width))
        result = script("runs")
        assert max(map(len, result.out.splitlines())) <= width
        assert "--wide" in result.err
        rows = columns_of(result.out)
        assert [row["state"].split()[0] for row in rows] == ["done", "stopped"]
        if width > 60:  # the folder of a run has 30 characters and is cut last
            assert [row["run"] for row in rows] == [str(done), str(cut)]
            assert [row["bits/byte"] for row in rows] == [best_of(done)[1], best_of(cut)[1]]
    assert script("runs", "--wide").out == piped

    monkeypatch.setenv("COLUMNS", "500")
    result = script("runs")
    assert (result.out, result.err) == (piped, "")

    # The path of a long name keeps its start and its end. The overrides keep their start.
    monkeypatch.setenv("COLUMNS", "80")
    long = Path("runs", "shakespeare_char_with_rotary_positions", done.name)
    shutil.copytree(done, long)
    (row,) = columns_of(script("runs", str(long.parent)).out)
    assert (row["state"], row["step"], row["bits/byte"]) == ("done", "4 of 4", best_of(done)[1])
    start, end = row["run"].split("…")
    assert str(long).startswith(start)
    assert str(long).endswith(end)
    assert row["changed"].startswith("experiment=smo")


def test_runs_are_listed_for_programs(script, two_runs):
    done, cut = two_runs
    listed = json.loads(script("runs", "--json").out)
    assert [run["run"] for run in listed] == [str(done), str(cut)]
    assert (listed[0]["state"], listed[0]["step"], listed[0]["max_steps"]) == ("done", 4, 4)
    for run, folder in zip(listed, (done, cut), strict=True):
        assert (f"{run['loss']:.4f}", f"{run['bits_per_byte']:.4f}") == best_of(folder)
    assert listed[0]["changed"][-1] == "optimizer.lr=0.02"
    assert listed[1]["by"] == "the time limit"


def test_a_run_is_deleted_by_the_system(script, two_runs):
    done, cut = two_runs
    shutil.rmtree(cut)
    assert [line.split()[0] for line in script("runs").out.splitlines()[1:]] == [str(done)]
    refused = script("sample", "runs/latest")
    refused.assert_refused("runs/latest")
    assert script("train", f"resume={done}", "trainer.max_steps=5").code == 0
    assert script("sample", "runs/latest", "--max-new-tokens", "1").code == 0


def test_a_damaged_run_is_told_and_the_others_are_listed(script, two_runs):
    done, cut = two_runs
    (cut / "config.yaml").write_text("trainer: [\n")
    result = script("runs")
    assert result.code == 0
    assert row_of(result, cut)[1] == "damaged"
    assert row_of(result, done)[1] == "done"
    assert result.err.startswith(
        f"error: {cut}/config.yaml must be YAML with keys and plain values ("
    )
    assert result.err.count("\n") == 1
