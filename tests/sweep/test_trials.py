"""The trials of a sweep: their values, who may train them, and what their rows show. The runs are simulated."""

import json

import pytest

from gptmini.runs import RunStatus, write_status
from gptmini.runs.run_folder import locked
from gptmini.system.errors import UserError
from pretended_sweep import RATE, trials_in


def begin(trials, number, loss=None, **status):
    """Write the files that a run of gptmini train writes."""
    folder = trials.folder / str(number)
    folder.mkdir()
    typed = trials.space.overrides(trials.values_of(number))
    (folder / "config.yaml").write_text(
        f"version: 0.3.0\ntyped: {json.dumps(typed)}\ntrainer: {{max_steps: 4}}\n"
    )
    write_status(folder, RunStatus(**{"state": "running", "step": 2} | status))
    if loss is not None:
        line = {"step": 2, "val/loss": 2 * loss, "val/bits_per_byte": loss}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")


def finish_all(trials, loss_of=lambda texts: 1.0):
    """End all trials, each with a loss that is a function of its values. Return the values of all trials."""
    for number in range(trials.n_trials):
        loss = loss_of(trials.values_of(number))
        begin(trials, number, loss, state="done", exit_code=0)
    return [row.values for row in trials.rows()]


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_the_values_of_a_trial_depend_only_on_the_seed_and_its_number(tmp_path, sampler):
    first = finish_all(trials_in(tmp_path / "a", sampler))
    alone = trials_in(tmp_path / "b", sampler)
    assert [alone.values_of(number) for number in (5, 0)] == [first[5], first[0]]
    assert len({str(values) for values in first}) == 6
    if sampler == "random":
        other = trials_in(tmp_path / "c", sampler, seed=2)
        assert not any(other.values_of(number) in first for number in range(6))


@pytest.mark.slow
def test_tpe_learns_where_the_loss_is_low(tmp_path):
    trials = trials_in(tmp_path, "tpe", {"optimizer.lr": RATE}, trials=40)
    texts = finish_all(trials, lambda texts: float(texts["optimizer.lr"]))
    rates = [float(values["optimizer.lr"]) for values in texts]
    assert sum(rates[-10:]) < sum(rates[:10]) / 2


def test_runs_of_an_earlier_version_are_no_trials(tmp_path):
    begin(trials_in(tmp_path), 0)
    with pytest.raises(UserError, match="name=OTHER"):
        trials_in(tmp_path).describe({})


def test_a_run_that_has_begun_keeps_its_values(tmp_path):
    one = trials_in(tmp_path, "tpe")
    begin(one, 0)
    other = trials_in(tmp_path, "tpe", seed=2)
    assert other.values_of(0) == one.values_of(0)
    assert other.values_of(1) != one.values_of(1)


def test_a_trial_has_one_owner_until_it_is_released(tmp_path):
    one = trials_in(tmp_path)
    other = trials_in(tmp_path)
    first, lock = one.take([])
    assert first == 0
    assert other.take([])[0] == 1
    lock.release()
    assert other.take([])[0] == 0
    assert one.take([0, 1])[0] == 2


def test_a_trial_whose_run_is_training_is_not_taken(tmp_path):
    """Its sweep may have been killed."""
    trials = trials_in(tmp_path)
    begin(trials, 0)
    with locked(tmp_path / "0"):
        assert trials.take([])[0] == 1
        assert trials.rows()[0].run.state == "running"
    assert trials.rows()[0].run.state == "killed"

    # The process of a complete run holds its lock until it has exited.
    begin(trials, 1, state="done", exit_code=0)
    with locked(tmp_path / "1"):
        assert trials.rows()[1].run.state == "done"


@pytest.mark.parametrize(
    ("code", "is_open"), [(0, False), (2, False), (1, True), (-9, True), (143, True)]
)
def test_only_complete_runs_and_mistakes_are_not_started_again(tmp_path, code, is_open):
    trials = trials_in(tmp_path)
    begin(trials, 0)
    trials.record(0, code, "a reason")
    (row,) = trials.rows()
    assert (row.exit_code, row.run.status.reason) == (code, "a reason")
    assert (0 in trials_in(tmp_path).open_trials([])) == is_open
    # A complete run stays complete if a later start finds its folder locked.
    trials.record(0, 1, "locked")
    assert trials_in(tmp_path).rows()[0].exit_code == (1 if code else 0)


def test_a_run_that_failed_before_it_had_a_folder_has_a_row(tmp_path):
    trials = trials_in(tmp_path)
    trials.record(3, 2, "model.n_heads=3")
    (row,) = trials.rows()
    assert (row.trial, row.run.state, row.run.status.reason) == (3, "failed", "model.n_heads=3")
    assert row.values == trials.values_of(3)
