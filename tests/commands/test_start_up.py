"""The garbage collector is off while a command imports, and on again when it trains."""

import gc

from gptmini.commands.start_up import started, starting_up


def test_a_run_trains_with_the_collector_on(script, short, monkeypatch):
    seen = []

    def fit(*_, **__):
        seen.append(gc.isenabled())
        return Result()

    monkeypatch.setattr("gptmini.commands.train.fit_and_announce", fit)
    monkeypatch.setattr("gptmini.commands.train.check_configuration", noting(seen))

    assert script("train", *short).code == 0
    assert seen == [False, True]
    assert gc.isenabled()


class Result:
    """What the command reads of a TrainingResult."""

    exit_code = 0
    stopped_by = None
    best = None
    folder = "runs/smoke/now"


def noting(seen):
    """plan.check_configuration, which imports what is heavy, with a note of whether the collector was on."""
    from gptmini.commands.plan import check_configuration

    def checked(config):
        seen.append(gc.isenabled())
        return check_configuration(config)

    return checked


def test_the_collector_is_on_again_after_a_mistake(script):
    assert script("train", "trainer.max_step=1").code == 2
    assert gc.isenabled()


def test_what_runs_leave_behind_is_collected():
    class Cycle:
        pass

    for _ in range(2):
        with starting_up():
            started()
            frozen = gc.get_freeze_count()
            cycle = Cycle()
            cycle.itself = cycle
            del cycle

    assert gc.collect() > 0
    assert gc.get_freeze_count() == frozen  # only the first start-up of a process is set aside


def test_a_collector_that_the_caller_turned_off_stays_off():
    gc.disable()
    try:
        with starting_up():
            started()
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
