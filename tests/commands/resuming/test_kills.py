"""A run that was killed at any moment goes on in its folder to the same weights, best validation and curves."""

import os
import shutil
import signal

import pytest

from commands.resuming.kills import EACH, KILLS, LONG, killed, when
from commands.resuming.readings import assert_same, curves, rows
from gptmini.training.monitoring.samples import Samples
from gptmini.training.monitoring.scalars import Scalars
from run_folders import newest

pytestmark = pytest.mark.slow  # together they take minutes


@pytest.mark.parametrize("kill", KILLS)
def test_a_killed_run_resumes_to_the_same_weights_best_and_events(straight, begin, resume, kill):
    reference = straight()
    with killed(*KILLS[kill]):
        begin()
    # What a real kill leaves of two of the files that a resumed run writes anew.
    for name in ("config.yaml", "metrics.jsonl"):
        (newest() / f".{name}.0123456789abcdef.tmp").touch()
    result = resume()

    assert result.code == 0
    assert list(newest().rglob("*.tmp")) == []
    nothing_saved = kill == "before the first checkpoint"
    assert ("nothing was saved yet: from the first step" in result.out) == nothing_saved
    assert_same(newest(), reference)


def test_pictures_of_a_resumed_run_are_drawn_once_and_equal(
    script, watched, resume, tmp_path_factory
):
    assert script("train", *watched, *LONG, *EACH).code == 0
    reference = shutil.copytree(newest(), tmp_path_factory.mktemp("watched") / "run")

    with killed(6, "on_validation_end", Samples):
        script("train", *watched, *LONG, *EACH)
    assert resume().code == 0

    seen = curves(newest())
    assert rows(newest()) == rows(reference)
    assert [step for step, _ in seen["zoom/attention"]] == [3, 6, 7]
    assert [step for step, _ in seen["zoom/mispredicted/text_summary"]] == [3, 6, 7]
    assert seen == curves(reference)

    (tokens,) = newest().glob("plugins/*/embedding.tsv")
    assert tokens.read_text() == next(reference.glob("plugins/*/embedding.tsv")).read_text()


@pytest.mark.parametrize("name", ["events.*", "metrics.jsonl"])
@pytest.mark.parametrize("missing", [1, 30, 150])
def test_curves_that_end_amid_a_line_or_an_event_are_made_good(
    straight, begin, resume, name, missing
):
    reference = straight()
    with killed(5, "on_train_batch_end", Samples):
        begin()

    # What is cut is of step 5, which is later than the newest checkpoint.
    (path,) = newest().glob(name)
    os.truncate(path, path.stat().st_size - missing)

    assert resume().code == 0
    assert_same(newest(), reference)


@pytest.mark.parametrize(
    "where", [("on_validation_batch_end", Scalars), ("on_validation_end", Samples)]
)
def test_a_kill_amid_the_validation_that_a_stop_left_over_logs_it_once(
    straight, begin, resume, where
):
    reference = straight()
    with when(6, lambda: signal.raise_signal(signal.SIGTERM), "on_train_batch_end"):
        assert begin().code == 143
    with killed(6, *where):
        resume()

    assert resume().code == 0
    assert_same(newest(), reference)
