"""The folder that a run gets, who may write to it, and the console that outlasts its reader."""

import io
import os
import re
import subprocess
import sys

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

import gptmini
from gptmini import run_folder
from gptmini.run_folder.latest import FORBIDDEN
from gptmini.training.monitoring import console
from gptmini.user_error import UserError

# A process that trains in a folder too.
OTHER = """
import sys
from pathlib import Path
from gptmini.run_folder import locked

with locked(Path(sys.argv[1])):
    pass
"""


def test_runs_that_start_in_one_second_get_folders_of_their_own(tmp_path):
    first = run_folder.new_run_folder(tmp_path, "demo", "seed: 0\n")
    second = run_folder.new_run_folder(tmp_path, "demo", "seed: 1\n")

    assert first != second
    assert first.parent == second.parent == tmp_path / "demo"
    assert (tmp_path / "latest" / "config.yaml").read_text().endswith("\nseed: 1\n")


LABELS = {
    "lr-0.01_n_layers-2": "lr-0.01_n_layers-2",
    "path-a b:c*?<>|\"'\\.txt": "path-a-b-c-.txt",
    "lr--1e-05": "lr--1e-05",
    "stop-1.": "stop-1",
    "text-ä\n\udcff": "text",
    "x" * 300: "x" * 60,
}


@pytest.mark.parametrize("label", LABELS)
def test_a_label_ends_the_name_of_a_folder_that_every_file_system_allows(tmp_path, label):
    first = run_folder.new_run_folder(tmp_path, "demo", "", label)
    second = run_folder.new_run_folder(tmp_path, "demo", "", label)

    assert first != second
    for folder in (first, second):
        assert re.fullmatch(r"[\d-]{10}_[\d-]{8}_.+", folder.name)
        assert not set(folder.name) & FORBIDDEN
        assert not folder.name.endswith((".", " "))
        assert len(folder.name.encode()) < 255
        # Hydra takes the path as it stands.
        (override,) = OverridesParser.create().parse_overrides([f"resume=runs/demo/{folder.name}"])
        assert override.value() == f"runs/demo/{folder.name}"
    assert first.name[20:] == LABELS[label]


@pytest.mark.parametrize("name", ["", "..", "a/b", "latest", 3])
def test_a_name_that_is_no_folder_name_is_refused(name):
    with pytest.raises(ValueError, match="name must be a plain folder name"):
        run_folder.check_run_name(name)


@pytest.mark.parametrize("kind", ["link", "file", "folder of files"])
def test_a_latest_that_is_not_ours_is_left_as_it_is(tmp_path, kind):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").write_text("precious")
    latest = tmp_path / "latest"
    if kind == "link":
        latest.symlink_to("old")
    elif kind == "file":
        latest.write_text("precious")
    else:
        (tmp_path / "old").rename(latest)

    before = sorted(tmp_path.rglob("*"))
    wanted = "latest must be absent or a folder of links that an earlier run made"
    with pytest.raises(ValueError, match=wanted):
        run_folder.new_run_folder(tmp_path, "demo", "")

    assert sorted(tmp_path.rglob("*")) == before


def test_durations_read_as_people_say_them():
    assert [console.duration(s) for s in (4.4, 185, 3720)] == ["4 s", "3 min 05 s", "1 h 02 min"]


def test_a_reader_that_leaves_does_not_end_the_run():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    lasting = console.LastingConsole(file=Gone())
    lasting.print("to nobody")
    lasting.print("still here")

    assert lasting.quiet


def test_a_folder_in_use_is_refused_and_its_process_named(tmp_path):
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    with run_folder.locked(tmp_path):
        other = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert f"is being trained by process {os.getpid()}; stop it first" in other.stderr
    assert list(tmp_path.iterdir()) == []

    # The folder is free again, also after a run that was stopped.
    with pytest.raises(SystemExit), run_folder.locked(tmp_path):
        sys.exit(130)
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_is_kept_under_the_version_that_writes_it(tmp_path):
    run_folder.write_config("seed: 1\n", tmp_path)
    kept = yaml.safe_load(run_folder.read_config(tmp_path))
    assert kept == {"version": gptmini.__version__, "seed": 1}


@pytest.mark.parametrize("version", ["0.3.0", "0.3.17", gptmini.__version__])
def test_a_run_of_a_version_that_stores_the_same_goes_on(tmp_path, version):
    run_folder.check_version(version, tmp_path)


@pytest.mark.parametrize(
    ("version", "named"),
    [(None, "0.1.0"), ("0.2.0", "0.2.0"), ("0.4.0", "0.4.0"), ("1.0.0", "1.0.0")],
)
def test_a_run_of_another_version_is_refused_and_the_version_named(tmp_path, version, named):
    wanted = rf"was begun by gptmini {named}, which \S+ cannot go on with; install"
    with pytest.raises(UserError, match=wanted):
        run_folder.check_version(version, tmp_path)


@pytest.mark.parametrize("version", ["", "new", "0.2", 0.2, ["0.2.0"], "0.2.0\n", "9" * 5000])
def test_a_version_that_is_none_is_refused(tmp_path, version):
    with pytest.raises(UserError, match="must name the version of gptmini that wrote it, got"):
        run_folder.check_version(version, tmp_path)
