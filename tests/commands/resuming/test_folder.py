"""A command with folder= starts a run there, and resumes that run each time it is repeated."""

import os
import shutil
from pathlib import Path

import pytest

from commands.resuming.kills import EACH, KILLS, LONG, killed
from commands.resuming.readings import assert_same, curves, rows, snapshot
from gptmini.runs import find_run
from gptmini.runs.run_folder import locked
from gptmini.training.callbacks.samples import Samples
from run_folders import config_of, last, newest

X = Path("runs/x")


@pytest.fixture
def train_x(begin):
    """Return a function that trains seven steps in the folder runs/x."""
    return lambda *overrides: begin("folder=runs/x", *overrides)


def test_any_number_of_kills_change_nothing(straight, train_x):
    reference = straight()
    X.mkdir(parents=True)  # the folder may be absent or empty
    for kill in KILLS.values():
        with killed(*kill):
            train_x()

    assert train_x().code == 0
    assert_same(X, reference)
    assert newest() == X.resolve()


def test_a_run_killed_before_its_first_checkpoint_begins_again_with_empty_curves(straight, train_x):
    reference = straight()
    with killed(2, "on_train_batch_end"):
        train_x()
    assert [step for step, _ in curves(X)["train/loss"]] == [1, 2]
    with killed(0):
        train_x()
    assert "train/loss" not in curves(X)
    assert rows(X).keys() == {"setup/config", "setup/data", "setup/model"}

    assert "resume   no checkpoint was saved yet" in train_x().out
    assert_same(X, reference)


def test_pictures_of_a_resumed_run_are_drawn_once_and_equal(
    script, watched, resume, tmp_path_factory
):
    assert script("train", *watched, *LONG, *EACH).code == 0
    reference = shutil.copytree(newest(), tmp_path_factory.mktemp("watched") / "run")

    with killed(6, "on_validation_end", Samples):
        script("train", *watched, *LONG, *EACH)
    assert resume().code == 0

    seen = curves(newest())
    assert seen == curves(reference)
    assert rows(newest()) == rows(reference)
    assert [step for step, _ in seen["zoom/attention"]] == [3, 6, 7]


def test_a_finished_run_says_so_and_goes_further_when_it_is_asked_to(begin, train_x):
    assert train_x().code == 0
    before = snapshot(X)
    for result in (train_x(), begin("resume=runs/x")):
        assert (result.code, result.err) == (0, "")
        done, sample = result.out.splitlines()
        assert done.startswith("done     runs/x is complete at step 7; ")
        assert "trainer.max_steps" in done
        assert sample == "next     gptmini sample runs/x"
    assert snapshot(X) == before

    # Overrides need not be repeated, and the keys that set a run's length may change.
    result = begin("trainer.max_steps=9", "folder=runs/x")
    assert "step 7 of 9" in result.out
    assert last(X)["global_step"] == 9
    typed = config_of(X)["typed"]
    assert typed.count("trainer.max_steps=9") == 1
    assert "folder=runs/x" not in typed


def test_only_typed_keys_are_compared_with_those_of_the_run(interrupted, script):
    interrupted("seed=3")
    folder = newest().relative_to(Path.cwd())
    config = (folder / "config.yaml").read_text()

    # The run was started with another default learning rate.
    assert "lr: 0.03" in config
    (folder / "config.yaml").write_text(config.replace("lr: 0.03", "lr: 0.029"))
    assert script("train", f"folder={folder}", "data=text", "data.path=my.txt").code == 0
    assert config_of(folder)["optimizer"]["lr"] == 0.029
    assert config_of(folder)["seed"] == 3

    said = f"leave out optimizer.lr=0.03, or start a new run with init_from={folder}"
    script("train", f"folder={folder}", "optimizer.lr=0.03").assert_refused(said)


def test_jobs_of_hydra_may_have_folders_that_differ(begin):
    typed = ("-m", "folder=runs/mine/${hydra:job.num}", "seed=1,2", "trainer.max_steps=1")
    for said in ("done     1 step in ", "is complete at step 1"):
        result = begin(*typed)
        assert result.code == 0, result.err
        assert result.out.count(said) == 2
    assert [config_of(Path(f"runs/mine/{i}"))["seed"] for i in (0, 1)] == [1, 2]


def test_a_run_that_another_process_trains_is_refused_and_the_process_named(interrupted, begin):
    interrupted()
    folder = newest()
    before = snapshot(folder)
    with locked(folder):
        said = f"process {os.getpid()} "
        begin(f"folder={folder}").assert_refused(said, code=1)
        begin("resume=runs/latest").assert_refused(said, code=1)
    assert snapshot(folder) == before


def test_going_on_makes_a_run_the_newest_of_the_folder_of_all_runs_around_it(script, begin):
    assert begin("trainer.max_steps=1", "runs_dir=there", "name=a").code == 0
    (named,) = Path("there/a").iterdir()
    assert begin("trainer.max_steps=1", "folder=there/b").code == 0

    for run in (named, Path("there/b")):
        assert find_run("there/latest").resolve() != run.resolve()
        assert script("train", f"resume={run}", "trainer.max_steps=2").code == 0
        assert find_run("there/latest").resolve() == run.resolve()
    assert list(Path("there/a").iterdir()) == [named]
