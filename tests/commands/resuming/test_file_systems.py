"""A run goes its whole way on a file system that makes no links."""

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from commands.resuming.kills import EACH, killed
from commands.resuming.readings import assert_same, assert_whole
from gptmini.run_folder import find_run
from run_folders import last

pytestmark = pytest.mark.slow

NOTE = "does not make every link: {runs}/latest/run.txt names the newest run and a save copies"


def refuse(*arguments, **more):
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.fixture
def refused(monkeypatch):
    """The working folder, in which no link can be made."""
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "symlink", refuse)
    return Path()


@pytest.fixture
def vfat(tmp_path):
    """An empty vfat file system."""
    mkfs = shutil.which("mkfs.vfat")
    if mkfs is None:
        pytest.skip("mkfs.vfat of Debian's dosfstools is not installed")
    image = tmp_path / "vfat.img"
    with image.open("wb") as file:
        file.truncate(64_000_000)
    subprocess.run([mkfs, str(image)], check=True, capture_output=True)

    place = tmp_path / "vfat"
    place.mkdir()
    mount = ["mount", "-t", "vfat", "-o", "loop", str(image), str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"vfat cannot be mounted: {mounted.stderr.strip()}")
    yield place.relative_to(tmp_path)
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("place", ["refused", "vfat"])
def test_without_links_a_run_is_killed_resumed_and_used_like_any_other(
    straight, begin, resume, script, request, place
):
    reference = straight(*EACH)
    shutil.rmtree("runs")
    place = request.getfixturevalue(place)
    runs = place / "runs"
    with killed(5):
        begin(*EACH, f"runs_dir={runs}", f"data_dir={place / 'data'}")

    log = (find_run(runs / "latest") / "train.log").read_text()
    assert log.count(NOTE.format(runs=runs)) == 1
    steps = {"best": 3, "previous": 4, "last": 5}
    folder = find_run(runs / "latest")
    assert {name: last(folder, name)["global_step"] for name in steps} == steps

    result = resume(run=runs / "latest")
    assert result.code == 0, result.err
    assert result.out.count(NOTE.format(runs=runs)) == 1
    assert_same(folder, reference)
    assert_whole(folder)
    assert not (folder / "checkpoints/best.ckpt").samefile(folder / "checkpoints/last.ckpt")

    for name in ("sample", "evaluate", "report"):
        used = script(name, str(runs / "latest"))
        assert used.code == 0, used.err
    assert re.search(rf"{folder}/report.html, ", used.out)

    # Nothing is lost when the run goes back to an earlier file.
    result = resume("trainer.max_steps=7", run=runs / "latest/checkpoints/best.ckpt")
    assert result.code == 0, result.err
    assert_same(folder, reference)
