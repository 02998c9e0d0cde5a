"""How a run stands is read from what it wrote at its end and from its newest checkpoint, without torch."""

import subprocess
import sys

import pytest
import torch

from gptmini.runs import End, checkpointed_step, clear_state, read_state, write_state
from gptmini.user_error import UserError


@pytest.mark.parametrize(
    "end",
    [
        End(state="done", step=7),
        End(state="ended", step=5, by="EarlyStopping"),
        End(state="pruned", step=5),
        End(state="stopped", step=16, by="SIGTERM"),
        End(state="failed", step=0, by="OutOfMemoryError"),
    ],
)
def test_an_end_is_read_as_it_was_written_until_the_run_goes_on(tmp_path, end):
    assert read_state(tmp_path) is None
    write_state(tmp_path, End(state="stopped", step=1, by="SIGINT"))
    write_state(tmp_path, end)
    assert read_state(tmp_path) == end
    assert [path.name for path in tmp_path.iterdir()] == ["state"]

    clear_state(tmp_path)
    clear_state(tmp_path)
    assert read_state(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"state": "done"}',
        '{"state": "ill", "step": 1}',
        '{"state": "done", "step": "1"}',
    ],
)
def test_a_state_that_no_run_wrote_is_refused(tmp_path, text):
    (tmp_path / "state").write_text(text)
    with pytest.raises(UserError, match="state must "):
        read_state(tmp_path)


class Opened:
    """Makes a file when it is unpickled by torch or pickle."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def save(folder, name, **entries):
    (folder / "checkpoints").mkdir(exist_ok=True)
    weights = {"model.w": torch.randn(3, 4), "model.tied": torch.nn.Parameter(torch.zeros(2))}
    torch.save({"state_dict": weights, **entries}, folder / "checkpoints" / name)


def test_the_step_is_that_of_the_newest_checkpoint(tmp_path):
    assert checkpointed_step(tmp_path) is None
    save(tmp_path, "best.ckpt", global_step=300)
    assert checkpointed_step(tmp_path) == 300
    save(tmp_path, "last.ckpt", global_step=70_000)
    assert checkpointed_step(tmp_path) == 70_000


def test_a_damaged_checkpoint_is_told_and_one_that_would_run_code_runs_none(tmp_path):
    save(tmp_path, "last.ckpt", global_step=5, trap=Opened(tmp_path / "made"))
    assert checkpointed_step(tmp_path) == 5
    assert not (tmp_path / "made").exists()

    path = tmp_path / "checkpoints" / "last.ckpt"
    whole = path.read_bytes()
    save(tmp_path, "last.ckpt")
    no_step = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], no_step):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"last\.ckpt is damaged"):
            checkpointed_step(tmp_path)


def test_a_table_of_runs_needs_no_torch():
    code = "import sys, gptmini.report.overview; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
