"""The journal of a sweep outlives a cut at any byte: what was drawn stays, and the rest is drawn as it would be."""

import json

import pytest

from gptmini.search.space import Dimension
from gptmini.search.study import SearchSettings, Study
from gptmini.user_error import UserError

RATE = Dimension("optimizer.lr", low=0.001, high=0.1, is_log=True)
LAYERS = Dimension("model.n_layers", texts=("2", "4", "8"))
WIDTH = Dimension("model.d_model", low=8, high=64, is_whole=True)
SETTINGS = {
    "name": "x",
    "sampler": "auto",
    "trials": 5,
    "seed": 1,
    "retries": 2,
    "pruner": None,
    "pruner_startup": 5,
    "pruner_warmup": 0,
}


def study_in(folder, *dimensions, **settings):
    folder.mkdir(exist_ok=True)
    return Study(folder, dimensions, SearchSettings(**SETTINGS | settings), max_steps=100)


def try_all(study):
    """Begin and finish every trial that is left; return the values of all, each with a loss that follows from them."""
    values = []
    for trial in study.trials:
        if trial.state.name == "RUNNING":
            study.finish(trial.number, loss_of(study.texts(trial.number)))
    while study.n_begun < study.n_trials:
        number = study.begin()
        study.finish(number, loss_of(study.texts(number)))
    for number in range(study.n_begun):
        values.append((study.texts(number), study.trials[number].value))
    return values


def loss_of(texts):
    """A made-up loss."""
    return sum(len(key) * float(text) for key, text in texts.items())


@pytest.mark.parametrize(
    ("sampler", "dimensions"),
    [
        ("random", (RATE, LAYERS, WIDTH)),
        ("tpe", (RATE, LAYERS, WIDTH)),
        ("grid", (LAYERS, Dimension("optimizer.lr", texts=("0.1", "0.2")))),
    ],
)
def test_a_journal_that_is_cut_anywhere_goes_on_to_the_same_trials(tmp_path, sampler, dimensions):
    whole = try_all(study_in(tmp_path / "whole", *dimensions, sampler=sampler))
    assert len(whole) == 5
    journal = (tmp_path / "whole" / "journal.log").read_bytes()

    # Every end of a line, and places inside of lines; Optuna's lock is left behind too.
    ends = [i + 1 for i, byte in enumerate(journal) if byte == ord("\n")]
    for cut in sorted({*ends, *range(1, len(journal), 97)}):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "journal.log").write_bytes(journal[:cut])
        (folder / "journal.log.lock").symlink_to("gone")
        assert try_all(study_in(folder, *dimensions, sampler=sampler)) == whole


def test_random_trials_differ_and_a_seed_decides_them(tmp_path):
    first = try_all(study_in(tmp_path / "a", RATE, WIDTH, sampler="random"))
    again = try_all(study_in(tmp_path / "b", RATE, WIDTH, sampler="random"))
    other = try_all(study_in(tmp_path / "c", RATE, WIDTH, sampler="random", seed=2))
    assert first == again
    assert not any(values in first for values in other)
    assert len({json.dumps(texts) for texts, _ in first}) == 5


def test_tpe_learns_where_the_loss_is_low(tmp_path):
    study = study_in(tmp_path, RATE, trials=40)
    try_all(study)
    early = [trial.value for trial in study.trials[:10]]
    late = [trial.value for trial in study.trials[-10:]]
    assert sum(late) < sum(early) / 2


def test_a_grid_ends_with_its_last_point_or_after_fewer_trials(tmp_path):
    assert study_in(tmp_path / "a", LAYERS, trials=None).n_trials == 3
    assert study_in(tmp_path / "b", LAYERS, trials=2).n_trials == 2
    assert study_in(tmp_path / "b", LAYERS, trials=9).n_trials == 3


def test_facts_and_reasons_are_kept(tmp_path):
    study = study_in(tmp_path, LAYERS)
    number = study.begin()
    study.report(number, [(2, 1.0), (4, 0.5)])
    study.report(number, [(2, 1.0), (4, 0.5), (6, 0.25)])
    study.note(number, pruned_at=6)
    study.fail(number, "memory ran out")

    trial = study_in(tmp_path, LAYERS).trials[0]
    assert trial.state.name == "FAIL"
    assert trial.intermediate_values == {2: 1.0, 4: 0.5, 6: 0.25}
    assert trial.user_attrs == {"pruned_at": 6, "reason": "memory ran out"}


def test_the_median_of_others_prunes_a_trial_that_does_worse(tmp_path):
    study = study_in(tmp_path, LAYERS, pruner="median", pruner_startup=2, pruner_warmup=5)
    for loss in (1.0, 2.0):
        number = study.begin()
        study.report(number, [(5, loss), (10, loss)])
        study.finish(number, loss)

    number = study.begin()
    study.report(number, [(4, 9.0)])
    assert not study.should_prune(number)  # still warming up
    study.report(number, [(10, 1.4)])
    assert not study.should_prune(number)
    study.report(number, [(11, 1.6)])
    study.prune(number)
    assert study.trials[number].state.name == "PRUNED"


def test_hyperband_prunes_a_trial_that_does_worse(tmp_path):
    study = study_in(tmp_path, LAYERS, pruner="hyperband", sampler="random", trials=40)
    pruned = set()
    for _ in range(40):
        number = study.begin()
        loss = 1.0 if number % 2 else 9.0
        for step in (1, 3, 9, 27, 81):
            study.report(number, [(step, loss)])
            if study.should_prune(number):
                pruned.add(loss)
                study.prune(number)
                break
        else:
            study.finish(number, loss)
    assert 9.0 in pruned


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": "grid"}, "a grid needs every value, and optimizer.lr has an interval"),
        ({"sampler": "random", "trials": None}, "sweep.trials must say how many runs random tries"),
        ({"sampler": "anneal"}, "sweep.sampler must be one of auto, grid, random, tpe"),
        ({"pruner": "axe"}, "sweep.pruner must be median, hyperband or null"),
        ({"trials": 0}, "sweep.trials must be a whole number of at least 1"),
        ({"retries": -1}, "sweep.retries must be a whole number of at least 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        study_in(tmp_path, RATE, **settings)


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    (tmp_path / "journal.log").write_text('{"a": 1}\nno journal\nat all\n')
    with pytest.raises(UserError, match="is not the journal of a sweep"):
        study_in(tmp_path, RATE)
