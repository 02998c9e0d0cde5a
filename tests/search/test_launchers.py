"""Each run of a sweep has GPUs of its own, and a trial's folder says who trains it."""

import multiprocessing
import os

import pytest

from gptmini.search import Launcher, LauncherSettings, Result, TrialFolder
from gptmini.user_error import UserError


def launcher(tmp_path, **settings):
    """A launcher on a machine with four GPUs."""
    used = LauncherSettings(**{"cluster": "local", "jobs": 2, "gpus": 2} | settings)
    return Launcher(used, tmp_path, ("0", "1", "2", "3"))


def test_runs_take_gpus_of_their_own_and_give_them_back(tmp_path):
    here = launcher(tmp_path)
    first = here.take_gpus()
    second = here.take_gpus()
    assert (first, second) == ("0,1", "2,3")
    assert not here.has_free_gpus()
    here.give_back(first)
    assert here.has_free_gpus()
    assert here.take_gpus() == "0,1"


def test_a_run_of_an_earlier_start_keeps_its_gpus(tmp_path):
    here = Launcher(
        LauncherSettings(cluster="local", jobs=2, gpus=2), tmp_path, ("3", "5", "7", "8")
    )
    here.keep_gpus("5,7")
    assert here.has_free_gpus()
    assert here.take_gpus() == "3,8"
    assert not here.has_free_gpus()


def test_fewer_gpus_than_runs_need_are_refused(tmp_path):
    with pytest.raises(UserError, match="3 runs at once need 6 GPUs, and 4 are here; lower --jobs"):
        launcher(tmp_path, jobs=3)
    settings = LauncherSettings(cluster="local", jobs=9, gpus=2)
    assert Launcher(settings, tmp_path).take_gpus() is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cluster": "cloud"}, "launcher.cluster must be one of local, slurm"),
        ({"jobs": 0}, "launcher.jobs must be a whole number of at least 1"),
        ({"gpus": -1}, "launcher.gpus must be a whole number of at least 0"),
        ({"memory_gb": 0}, "launcher.memory_gb must be a finite number above 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        launcher(tmp_path, **settings)


def hold(folder, locked, end):
    with folder.locked():
        locked.set()
        end.wait(30)


def test_the_lock_of_a_trial_says_who_trains_it_and_is_free_after_a_kill(tmp_path):
    folder = TrialFolder(tmp_path, 3)
    folder.path.mkdir(parents=True)
    assert not folder.is_locked()

    context = multiprocessing.get_context("fork")
    locked = context.Event()
    process = context.Process(target=hold, args=(folder, locked, context.Event()))
    process.start()
    assert locked.wait(30)
    assert folder.is_locked()
    assert folder.process() == process.pid != os.getpid()

    process.kill()
    process.join()
    assert not folder.is_locked()
    assert folder.process() is None


def test_a_result_is_read_as_it_was_written_and_junk_is_refused(tmp_path):
    folder = TrialFolder(tmp_path, 3)
    folder.path.mkdir(parents=True)
    assert folder.read_result() is None
    result = Result(seconds=2.5, run="runs/x", loss=3.0, bits_per_byte=1.5, step=7)
    folder.write_result(result)
    assert folder.read_result() == result

    folder.result_file.write_text('{"seconds": 1')
    with pytest.raises(UserError, match="is not what a sweep writes; remove it"):
        folder.read_result()
    folder.result_file.write_text('{"minutes": 1}')
    with pytest.raises(UserError, match="is not what a sweep writes; remove it"):
        folder.read_result()
