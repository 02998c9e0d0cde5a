"""gptmini runs lists every run: what was typed for it, how far it is and how well it does."""

import os
import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gptmini.runs.folder import locked

pytestmark = pytest.mark.slow


@pytest.fixture
def two_runs(script, short, once):
    """A run that is done, and one that was stopped after its first step."""

    def train():
        kept_to_itself = ("name=done", "trainer.threads=1")
        assert script("train", *short, *kept_to_itself, "optimizer.lr=0.02").code == 0
        assert script("train", *short, "name=cut", "trainer.max_time=1e-3").code == 0

    once("runs listed", train)
    (done,) = Path("runs/done").iterdir()
    (cut,) = Path("runs/cut").iterdir()
    return done, cut


def row_of(result, run):
    """The cells of a run's row."""
    (line,) = [line for line in result.out.splitlines() if line.startswith(f"{run} ")]
    return re.split(r" {2,}", line)


def best_of(run):
    """Lowest validation loss in the run's event files, as TensorBoard reads them."""
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
    assert (state, step) == ("stopped", "1 of 4")
    assert changed.endswith("trainer.max_time=1e-3")
    # latest is another name of the newest, and no run of its own.
    assert len(result.out.splitlines()) == 3


def test_a_run_that_is_trained_now_is_running_and_is_not_disturbed(script, two_runs):
    _, cut = two_runs
    with locked(cut):
        assert row_of(script("runs"), cut)[1] == "running"
    assert row_of(script("runs"), cut)[1] == "stopped"


def test_runs_are_sorted_by_loss_or_by_when_they_began(script, two_runs):
    done, cut = two_runs
    by_time = [line.split()[0] for line in script("runs").out.splitlines()[1:]]
    assert by_time == [str(done), str(cut)]
    by_loss = script("runs", "--sort", "loss").out.splitlines()[1:]
    assert by_loss[0].startswith("runs/done/")
    assert len(script("runs", "runs/cut").out.splitlines()) == 2
    assert len(script("runs", str(cut)).out.splitlines()) == 2


def test_a_damaged_run_is_told_and_the_others_are_listed(script, two_runs):
    done, cut = two_runs
    (cut / "config.yaml").write_text("trainer: [\n")
    result = script("runs")
    assert result.code == 0
    assert row_of(result, cut)[1] == "damaged"
    assert row_of(result, done)[1] == "done"
    assert result.err.startswith(
        f"error: {cut}/config.yaml must be YAML of keys and plain values ("
    )
    assert result.err.count("\n") == 1


def test_runs_on_other_tokens_are_sorted_by_bits_per_byte(script, short, two_runs):
    assert script("train", *short, "tokenizer=char", "name=letters").code == 0
    said = "sorted   by bits/byte, because losses of different tokens cannot be compared"
    by_loss = script("runs", "--sort", "loss").out.splitlines()
    assert by_loss.pop() == said
    *validated, cut = by_loss[1:]
    bits = [float(re.split(r" {2,}", line)[4]) for line in validated]
    assert bits == sorted(bits)
    assert cut.startswith("runs/cut/")
    assert said not in script("runs").out


def test_a_named_pipe_is_no_run(script, two_runs):
    pipe = Path("runs/piped/a/config.yaml")
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    assert "piped" not in script("runs").out


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nowhere", "nowhere holds no run; gptmini train begins one"),
        (".", r"\. holds no run; gptmini train begins one"),
    ],
)
def test_a_folder_without_runs_is_told(script, argument, message):
    result = script("runs", argument)
    assert result.code == 2
    assert re.match(f"error: {message}", result.err)
    assert result.err.count("\n") == 1
