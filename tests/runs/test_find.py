"""A path finds the run or the checkpoint that the user means."""

import os
from pathlib import Path

import pytest

import gptmini
from gptmini.runs import every_run, find_checkpoint, find_run, find_runs, named_run
from gptmini.runs.run_folder import Identity, link_latest, write_config
from gptmini.system.errors import UserError

# In the order in which the runs started. Their files have the opposite order of times, as those of a copy may have.
TIMES = (
    "2026-11-22_09-00-00",
    "2026-11-22_09-00-00_2",
    "2026-11-22_09-00-00_10",
    "2026-11-22_10-00-02",
)
DEMO = [Path("runs/demo", time) for time in TIMES]
NEWEST = DEMO[-1]
OTHER = Path("runs/other/2026-11-22_09-30-00")


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    """Make several runs of the name demo and one of the name other, to which runs/latest points."""
    monkeypatch.chdir(tmp_path)
    for i, folder in enumerate([*DEMO, OTHER]):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "last.ckpt").write_text("")
        begun = f"2026-11-22_0{i}-00-00.5" if folder != OTHER else "2026-11-22_02-30-00.5"
        write_config("", folder, [], Identity(begun=begun, id="demo"))
        os.utime(folder / "config.yaml", (1_000_000 - i, 1_000_000 - i))
    link_latest(Path("runs"), OTHER)


@pytest.mark.parametrize(
    ("given", "run"),
    [
        (NEWEST, NEWEST),
        (NEWEST / "checkpoints" / "last.ckpt", NEWEST),
        (Path("runs/demo"), NEWEST),
        (Path("runs/latest"), OTHER),
    ],
)
def test_a_run_is_found_by_folder_by_checkpoint_by_name_and_by_latest(given, run):
    assert find_run(given) == find_run(given.absolute()) == run
    assert find_checkpoint(given).samefile(run / "checkpoints" / "last.ckpt")


def test_weights_are_those_of_the_newest_run_that_has_a_checkpoint():
    (NEWEST / "checkpoints" / "last.ckpt").unlink()
    assert find_checkpoint("runs/demo") == DEMO[-2] / "checkpoints" / "last.ckpt"
    assert named_run("runs/demo", saved=True) == DEMO[-2]
    assert named_run("runs/demo") == find_run("runs/demo") == NEWEST

    for run in DEMO[:-1]:
        (run / "checkpoints" / "last.ckpt").unlink()
    with pytest.raises(UserError, match=rf"^{NEWEST} has no checkpoints/best.ckpt"):
        find_checkpoint("runs/demo")


def test_a_run_is_found_from_inside_its_own_folder_and_that_of_its_name(monkeypatch):
    monkeypatch.chdir("runs/demo")
    assert find_run(".") == Path(TIMES[-1])
    assert find_runs(".") == [Path(time) for time in TIMES]
    monkeypatch.chdir(TIMES[-1])
    assert find_run(".") == Path()
    assert find_runs(".") == [Path()]


def test_a_folder_of_runs_holds_them_in_the_order_in_which_they_began():
    assert find_runs("runs/demo") == DEMO
    assert find_runs(NEWEST) == [NEWEST]

    # A run keeps its start, whatever its folder's name and its files' times are. It may lie beside those of a name.
    renamed = DEMO[0].rename("runs/demo/kept")
    assert find_runs("runs/demo") == [renamed, *DEMO[1:]]
    own = renamed.rename("runs/own")
    assert find_run("runs/own") == own
    assert sorted(every_run("runs")) == sorted([*DEMO[1:], OTHER, own])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("runs", f"give runs/latest or the folder of one run, such as {NEWEST}"),
        ("absent", "absent does not exist; give a run folder such as runs/latest"),
        ("", "use runs/latest"),
    ],
)
def test_what_stands_for_no_run_is_refused_by_all_in_the_same_words(given, said):
    messages = set()
    for command in (find_run, find_runs, find_checkpoint, gptmini.load):
        with pytest.raises(UserError) as caught:
            command(given)
        messages.add(str(caught.value))
    (message,) = messages
    assert said in message


def test_a_run_means_its_best_checkpoint_else_its_newest(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()

    for name in ("previous.ckpt", "last.ckpt", "best.ckpt"):
        (folder / name).touch()
        assert find_checkpoint(tmp_path) == find_checkpoint(str(tmp_path)) == folder / name

    assert find_checkpoint(folder / "last.ckpt") == folder / "last.ckpt"
