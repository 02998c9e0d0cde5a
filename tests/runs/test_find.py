"""Which run a path stands for: the same for every command."""

import os
from pathlib import Path

import pytest

import gptmini
from gptmini.runs import every_run, find_checkpoint, find_run, find_runs, link_latest
from gptmini.training.run import open_run
from gptmini.user_error import UserError

# In the order in which the runs began. The times of their files say the opposite, as those of a copy may.
TIMES = (
    "2026-11-22_09-00-00",
    "2026-11-22_09-00-00_2",
    "2026-11-22_09-00-00_10",
    "2026-11-22_10-00-02",
)
NEWEST = Path("runs/demo", TIMES[-1])


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    """The working folder with several runs of the name demo and one of the name other, which runs/latest leads to."""
    monkeypatch.chdir(tmp_path)
    other = Path("runs/other/2026-11-22_09-30-00")
    folders = [Path("runs/demo", time) for time in TIMES]
    for i, folder in enumerate([*folders, other]):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "last.ckpt").write_text("")
        (folder / "config.yaml").write_text("version: 1.0.0\n")
        os.utime(folder / "config.yaml", (1_000_000 - i, 1_000_000 - i))
    link_latest(Path("runs"), other)
    return folders


def refusal(function, path):
    with pytest.raises(UserError) as caught:
        function(path)
    return str(caught.value)


@pytest.mark.parametrize("given", [NEWEST, NEWEST / "checkpoints" / "last.ckpt", Path("runs/demo")])
def test_a_run_is_found_by_folder_by_checkpoint_and_as_the_newest_of_its_name(given):
    assert find_run(given) == find_run(given.absolute()) == NEWEST
    assert find_checkpoint(given) == NEWEST / "checkpoints" / "last.ckpt"


def test_a_run_is_found_by_latest():
    assert find_run("runs/latest") == Path("runs/other/2026-11-22_09-30-00")
    assert find_checkpoint("runs/latest").samefile(
        "runs/other/2026-11-22_09-30-00/checkpoints/last.ckpt"
    )


def test_a_run_is_found_from_inside_the_folder_of_its_name(monkeypatch):
    monkeypatch.chdir("runs/demo")
    assert find_run(".") == Path(TIMES[-1])
    assert find_runs(".") == [Path(time) for time in TIMES]


def test_a_run_is_found_from_inside_its_own_folder(monkeypatch):
    monkeypatch.chdir(NEWEST)
    assert find_run(".") == Path()
    assert find_runs(".") == [Path()]


def test_a_folder_of_runs_holds_them_in_the_order_in_which_they_began(runs):
    assert find_runs("runs/demo") == runs
    assert find_runs(NEWEST) == [NEWEST]
    assert find_runs("runs/latest") == [Path("runs/other/2026-11-22_09-30-00")]


def test_a_run_of_another_folder_name_counts_from_when_its_configuration_was_written():
    renamed = Path("runs/demo/kept")
    Path("runs/demo", TIMES[0]).rename(renamed)
    assert find_runs("runs/demo")[0] == renamed
    later = Path("runs/demo/kept/config.yaml")
    later.write_text("")  # now
    os.utime(later, (4_000_000_000, 4_000_000_000))
    assert find_run("runs/demo") == renamed


@pytest.mark.parametrize(
    "command",
    [
        find_run,
        find_runs,
        find_checkpoint,
        gptmini.load,
        lambda path: open_run(path, None, runs_dir="runs", name="demo").__enter__(),
    ],
)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "runs",
            f"runs holds the runs of every name; give runs/latest, or one run, as {NEWEST}",
        ),
        ("absent", "absent does not exist; give a run folder (runs/latest) or a .ckpt file in one"),
    ],
)
def test_what_stands_for_no_run_is_refused_by_all_in_the_same_words(command, given, said):
    assert refusal(command, given) == said


def test_a_folder_of_runs_means_its_newest_run_to_loading_too():
    assert f"{NEWEST}" in refusal(gptmini.load, "runs/demo")


def test_a_run_directly_in_the_folder_of_all_runs_is_found_beside_those_of_a_name():
    own = Path("runs/own")
    own.mkdir()
    (own / "config.yaml").write_text("")
    assert find_run("runs/own") == own
    assert find_run("runs/demo") == NEWEST
    assert own in every_run("runs")
    assert NEWEST in every_run("runs")


def test_a_folder_without_runs_or_checkpoints_is_refused(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    assert f"{folder} belongs to no run: {folder / 'config.yaml'} is missing" in refusal(
        find_run, folder
    )
    expected = (
        f"{folder} holds no checkpoints/best.ckpt or checkpoints/last.ckpt; "
        "train first, or give a file"
    )
    assert refusal(find_checkpoint, folder) == expected


def test_a_run_means_its_best_checkpoint_else_its_newest(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()

    for name in ("previous.ckpt", "last.ckpt", "best.ckpt"):
        (folder / name).touch()
        assert find_checkpoint(tmp_path) == find_checkpoint(str(tmp_path)) == folder / name

    assert find_checkpoint(folder / "last.ckpt") == folder / "last.ckpt"
