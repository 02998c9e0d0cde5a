"""The state of a run is read as the run wrote it, without torch."""

import subprocess
import sys

import pytest

from gptmini.runs import RunStatus, read_status, write_status
from gptmini.user_error import UserError


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
