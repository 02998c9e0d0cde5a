"""A sweep's journal survives truncation at any byte, and only one worker trains each trial; Optuna can read it."""

import os
import subprocess
import sys
import time
from collections import Counter

import pytest
from optuna.pruners import MedianPruner

from gptmini.sweep import Space
from gptmini.sweep.journal import JournalLock
from gptmini.sweep.pruned import PrunedTrial
from gptmini.sweep.study import Sweep
from gptmini.user_error import UserError
from pretended_sweep import LAYERS, LISTED, RATE, SPACES, loss_of, settings
from sweep_journals import trials_of

DESCRIPTION = {
    "optimizer.lr": "0.01,0.03",
    "sweep.seed": 1,
    "sweep.pruner": "median",
    "sweep.pruner_startup": 2,
    "sweep.pruner_warmup": 5,
    "by_bits": False,
    "max_steps": 81,
}


def sweep_in(folder, sampler="grid", dimensions=None, **changes):
    folder.mkdir(exist_ok=True)
    space = Space(dimensions or SPACES[sampler], [])
    return Sweep(folder, space, settings(sampler=sampler, **changes))


def try_all(sweep):
    """Take and finish all remaining trials; the loss of each is a function of its values."""
    while (trial := sweep.take()) is not None:
        sweep.finish(trial.number, loss_of(trial.texts))
        trial.release()
    return [(trial.params, trial.value) for trial in trials_of(sweep.folder)]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["grid", "random", "tpe"])
def test_a_journal_that_is_cut_anywhere_goes_on_to_the_same_trials(tmp_path, sampler):
    whole = try_all(sweep_in(tmp_path / "whole", sampler))
    assert len(whole) == 6
    journal = (tmp_path / "whole" / "journal.log").read_bytes()

    # Cut at every end of a line, and at places inside lines. Try fewer cuts if the sampler is slow.
    ends = [i + 1 for i, byte in enumerate(journal) if byte == ord("\n")]
    cuts = sorted({*ends, *range(1, len(journal), 97)})
    for cut in cuts if sampler == "grid" else cuts[::8]:
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "journal.log").write_bytes(journal[:cut])
        assert try_all(sweep_in(folder, sampler)) == whole


def test_a_line_that_is_torn_while_others_write_is_cut(tmp_path):
    one = sweep_in(tmp_path)
    other = sweep_in(tmp_path)
    first = one.take()
    with (tmp_path / "journal.log").open("ab") as file:
        file.write(b'{"op_code":9,"worker_id":"killed')
    other.finish(first.number, 1.5)
    assert [trial.value for trial in trials_of(tmp_path)] == [1.5]
    assert one.take().number == 1


def test_random_trials_differ_and_a_seed_decides_them(tmp_path):
    first = try_all(sweep_in(tmp_path / "a", "random"))
    again = try_all(sweep_in(tmp_path / "b", "random"))
    other = try_all(sweep_in(tmp_path / "c", "random", seed=2))
    assert first == again
    assert not any(values in first for values in other)
    assert len({str(values) for values in first}) == 6


def test_tpe_learns_where_the_loss_is_low(tmp_path):
    try_all(sweep_in(tmp_path, "tpe", [RATE], trials=40))
    values = [trial.value for trial in trials_of(tmp_path)]
    assert sum(values[-10:]) < sum(values[:10]) / 2


def test_a_trial_has_one_worker_until_it_is_released(tmp_path):
    one = sweep_in(tmp_path)
    other = sweep_in(tmp_path)
    first = one.take()
    second = other.take()
    assert (first.number, second.number) == (0, 1)
    assert one.is_busy(0)
    first.release()
    assert not one.is_busy(0)
    # Interrupted trials come before new ones and keep their values.
    again = other.take()
    assert (again.number, again.texts) == (0, first.texts)


def test_a_trial_is_busy_while_its_run_lives_though_its_worker_is_gone(tmp_path):
    sweep = sweep_in(tmp_path)
    trial = sweep.take()
    run = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, pass_fds=[trial.lock])
    os.close(trial.lock)  # as the kernel does when the worker is killed
    assert sweep.is_busy(0)
    assert sweep.take().number == 1
    run.communicate(b"\n")
    assert sweep.take().number == 0


def test_a_trial_whose_run_somebody_else_trains_is_busy(tmp_path):
    from gptmini.runs import locked

    sweep = sweep_in(tmp_path)
    sweep.take().release()
    sweep.run_of(0).mkdir()
    with locked(sweep.run_of(0)):
        assert sweep.is_busy(0)
        assert sweep.take().number == 1
    assert not sweep.is_busy(0)


def test_what_is_given_up_is_tried_again_by_the_next_start_alone(tmp_path):
    one = sweep_in(tmp_path, dimensions=[LISTED])
    other = sweep_in(tmp_path, dimensions=[LISTED])
    trial = one.take()
    one.give_up(trial.number, "killed (3 times)")
    trial.release()
    assert other.take().number == 1
    assert other.take() is None
    assert trials_of(tmp_path)[0].user_attrs["reason"] == "killed (3 times)"
    assert sweep_in(tmp_path, dimensions=[LISTED]).take().number == 0


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    (tmp_path / "journal.log").write_text('{"a": 1}\nno journal\nat all\n')
    with pytest.raises(UserError, match=r"journal\.log is not "):
        sweep_in(tmp_path)


def test_the_median_of_others_prunes_a_trial_that_does_worse(tmp_path):
    sweep = sweep_in(tmp_path, dimensions=[LAYERS])
    sweep.describe(DESCRIPTION)
    for loss in (1.0, 2.0):
        number = sweep.take().number
        run = PrunedTrial(sweep.run_of(number))
        assert not run.report(5, loss)
        assert not run.report(10, loss)
        sweep.finish(number, loss)

    number = sweep.take().number
    run = PrunedTrial(sweep.run_of(number))
    assert not run.report(4, 9.0)  # still warming up
    assert not run.report(4, 0.1)  # reported again after a kill; this changes nothing
    assert run.report(10, 1.6)  # the median of the others is 1.5
    sweep.prune(number)

    # Optuna's own pruner agrees about the trials in the journal.
    trials = trials_of(tmp_path)
    assert trials[2].state.name == "PRUNED"
    assert trials[2].intermediate_values == {4: 9.0, 10: 1.6}
    assert trials[2].user_attrs["pruned_at"] == 10
    assert MedianPruner(2, 5).prune(sweep.study, trials[2])
    # A run that is resumed by hand later changes nothing.
    assert not run.report(15, 9.0)


@pytest.mark.slow
def test_hyperband_prunes_a_trial_that_does_worse(tmp_path):
    sweep = sweep_in(tmp_path, "random", trials=40)
    sweep.describe(DESCRIPTION | {"sweep.pruner": "hyperband", "sweep.pruner_warmup": 0})
    pruned = Counter()
    for number in range(40):
        trial = sweep.take()
        run = PrunedTrial(sweep.run_of(number))
        loss = 1.0 if number % 2 else 9.0
        if any(run.report(step, loss) for step in (1, 3, 9, 27, 81)):
            pruned[loss] += 1
            sweep.prune(number)
        else:
            sweep.finish(number, loss)
        trial.release()
    assert pruned[9.0] > pruned[1.0]


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path):
    (tmp_path / "journal.log").touch()
    code = (
        "import sys, pathlib; from gptmini.sweep.journal import JournalLock\n"
        "JournalLock(pathlib.Path(sys.argv[1])).acquire(); print('has it', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "journal.log")], stdin=-1, stdout=-1
    )
    assert holder.stdout.readline() == b"has it\n"
    holder.kill()
    holder.wait()
    began = time.monotonic()
    with JournalLock(tmp_path / "journal.log"):
        assert time.monotonic() - began < 5  # Optuna's own lock would take 30
