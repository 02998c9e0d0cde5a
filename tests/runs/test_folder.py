"""The folder of a run, what it holds, and its state."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gptmini
from gptmini.runs import RunStatus, read_status, run_folder, write_status
from gptmini.system.errors import UserError


def begin(root, config="", folder=None):
    place, _ = run_folder.make_run_folder(str(root), "demo", folder)
    run_folder.write_config(config, place, [])
    run_folder.link_latest(root, place)
    return place


def test_runs_that_start_in_one_second_get_folders_of_their_own(tmp_path):
    first = begin(tmp_path, "seed: 0\n")
    second = begin(tmp_path, "seed: 1\n")

    assert first != second
    assert first.parent == second.parent == tmp_path / "demo"
    assert (tmp_path / "latest" / "config.yaml").read_text().endswith("\nseed: 1\n")


def test_a_folder_of_ones_own_may_be_absent_or_empty_and_nothing_else(tmp_path):
    own = tmp_path / "mine"
    place, made = run_folder.make_run_folder("runs", None, str(own))
    assert (place, made) == (own, [own])
    # A process that was killed before its run started leaves a lock.
    (own / ".lock").touch()
    (own / "state").touch()  # of a sweep
    assert run_folder.make_run_folder("runs", None, str(own)) == (own, [])

    (own / "thesis.tex").touch()
    with pytest.raises(UserError, match="thesis"):
        run_folder.make_run_folder("runs", None, str(own))
    (own / "config.yaml").write_text("version: 0.3.0\ntyped: []\n")
    with pytest.raises(UserError, match=r"folder=.*inner .*mine;"):
        run_folder.make_run_folder("runs", None, str(own / "inner"))


@pytest.mark.parametrize("config", ['version: "3"\nservices: {}\n', "version: 1\ntype: x\n"])
def test_a_configuration_of_another_program_is_not_a_run(tmp_path, config):
    (tmp_path / "config.yaml").write_text(config)
    assert not run_folder.is_run(tmp_path)
    with pytest.raises(UserError, match=r"contains config\.yaml"):
        run_folder.make_run_folder("runs", None, str(tmp_path))


def test_a_latest_that_is_not_ours_is_left_as_it_is(tmp_path):
    (tmp_path / "latest").write_text("precious")
    wanted = "latest must be absent, or a folder of links"
    with pytest.raises(ValueError, match=wanted):
        begin(tmp_path, folder=str(tmp_path / "new"))
    assert (tmp_path / "latest").read_text() == "precious"


def test_a_run_keeps_when_it_began_and_its_id_wherever_its_folder_lies(tmp_path):
    # Two checkouts of one project, with the same command line.
    folders = [tmp_path / checkout / "runs" / "wb" for checkout in ("a", "b")]
    first, second = (run_folder.identity_of(folder) for folder in folders)
    assert first.id != second.id
    assert first.id.startswith("runs-wb-")

    folder = folders[0]
    folder.mkdir(parents=True)
    typed = ["data.path=Bücher: a, b", *["folder=runs/wb"] * 99]
    run_folder.write_config("seed: 1\n", folder, typed, first)
    assert run_folder.identity_of(folder) == first
    assert run_folder.read_config(folder) == ({"seed": 1}, typed)
    assert f"version: {gptmini.__version__}\n" in (folder / "config.yaml").read_text()
    moved = folder.rename(tmp_path / "moved")
    assert run_folder.identity_of(moved) == first

    # YAML quotes some names, and Weights & Biases accepts at most 128 characters.
    odd = tmp_path / "???" / "..."
    odd.mkdir(parents=True)
    identity = run_folder.identity_of(odd)
    run_folder.write_config("seed: 1\n", odd, [], identity)
    assert run_folder.identity_of(odd) == identity
    assert len(run_folder.identity_of(tmp_path / ("x" * 200)).id) <= 128


def test_a_run_of_an_earlier_version_has_the_id_that_its_folder_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/a#1")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("version: 0.3.0\ntyped: []\nseed: 1\n")
    identity = run_folder.identity_of(folder)
    assert identity.id == "runs-a-1"

    # From now on the run keeps its id and its start time.
    run_folder.write_config("seed: 1\n", folder, [], identity)
    os.utime(folder / "config.yaml", (4_000_000_000, 4_000_000_000))
    assert run_folder.identity_of(folder.rename("b")) == identity


@pytest.mark.parametrize(
    ("version", "named"),
    [(None, "0.1.0"), ("0.2.0", "0.2.0"), ("0.4.0", "0.4.0"), (0.2, "0.2")],
)
def test_a_run_of_another_version_is_refused_and_the_version_named(tmp_path, version, named):
    for same in ("0.3.0", "0.3.17", gptmini.__version__):
        run_folder.check_version(same, tmp_path)
    wanted = rf"a run of gptmini {named}; install"
    with pytest.raises(UserError, match=wanted):
        run_folder.check_version(version, tmp_path)


@pytest.mark.parametrize(
    "state", [RunStatus(state="done", step=7), RunStatus(state="ended", step=5, by="EarlyStopping")]
)
def test_a_state_is_read_as_it_was_written_last(tmp_path, state):
    assert read_status(tmp_path) is None
    write_status(tmp_path, RunStatus(state="stopped", step=1, by="SIGINT"))
    write_status(tmp_path, state)
    assert read_status(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("text", ["", '{"state": "done"}', '{"state": "ill", "step": 1}'])
def test_a_state_that_no_run_wrote_is_refused_and_named(tmp_path, text):
    (tmp_path / "state").write_text(text)
    with pytest.raises(UserError, match="/state "):
        read_status(tmp_path)


def test_a_table_of_runs_needs_no_torch():
    code = "import sys, gptmini.report.overview; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
