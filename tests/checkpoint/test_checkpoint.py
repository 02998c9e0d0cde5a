"""A checkpoint is written completely or not at all, and gives the model that was saved."""

import errno
import itertools
import os
import signal

import pytest
import torch

import gptmini
from checkpoint.checkpoints import LEARNED, ROTARY, make, small
from gptmini.checkpoint.file import TrainingState, step_of, write_checkpoint
from gptmini.model import new_gpt
from gptmini.system.errors import UserError

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "best.ckpt"


@pytest.mark.parametrize("config", [LEARNED, ROTARY])
def test_load_gives_the_model_and_the_tokenizer_ready_to_sample(path, config):
    written = make(config)
    write_checkpoint(written, path)
    model, tokenizer = gptmini.load(path)
    with path.open("rb+") as file:  # as a program that copies another checkpoint to this path
        file.write(bytes(path.stat().st_size))

    weights = {name.removeprefix("model."): t for name, t in written["state_dict"].items()}
    expected = new_gpt(config, seed=1).eval()
    expected.load_state_dict(weights)

    assert model.config == config
    assert not model.training
    assert torch.equal(model(TOKENS), expected(TOKENS))
    assert tokenizer.encode("cab") == [2, 0, 1]
    assert tokenizer.decode([10, 0]) == "ka"


def disk_full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def fail_as_torch_does(checkpoint, file):
    """Raise as torch's writer does: without a cause, so that the system's error is only its context."""
    try:
        file.write(b"PK")
        disk_full()
    except OSError:
        raise RuntimeError("unexpected pos 64 vs 0")  # noqa: B904


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    write_checkpoint(small(step=1), path)
    old = path.read_bytes()
    monkeypatch.setattr(torch, "save", fail_as_torch_does)

    with pytest.raises(OSError, match="No space left on device") as refused:
        write_checkpoint(small(), path)

    monkeypatch.undo()
    assert refused.value.filename == str(path)
    assert path.read_bytes() == old
    assert list(path.parent.iterdir()) == [path]


def of_step(step):
    """Return a checkpoint with only a step."""
    return {"gptmini": {"format": 1}, "state_dict": {}, "global_step": step}


def save_and_die(path, n):
    """Fork, save step 3 and die at the n-th call that touches the disk. Return True if there are fewer calls."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    calls = itertools.count(1)

    def deadly(function):
        def call(*arguments, **more):
            if next(calls) == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **more)

        return call

    for name in ("replace", "unlink", "fsync"):
        setattr(os, name, deadly(getattr(os, name)))
    try:
        write_checkpoint(of_step(3), path, previous=path.with_name("previous.ckpt"))
    finally:
        os._exit(0)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system makes no copies of a process")
def test_a_kill_at_any_moment_of_a_save_leaves_whole_checkpoints(tmp_path):
    found = []
    for n in itertools.count(1):
        folder = tmp_path / str(n)
        folder.mkdir()
        last = folder / "last.ckpt"
        previous = folder / "previous.ckpt"
        write_checkpoint(of_step(1), previous)
        write_checkpoint(of_step(2), last)

        ended = save_and_die(last, n)
        found.append({path.stem: step_of(path) for path in folder.glob("*.ckpt")})
        if ended:
            break

    # The old checkpoint becomes previous before the new one takes its name.
    before = {"previous": 1, "last": 2}
    between = {"previous": 2}
    after = {"previous": 2, "last": 3}
    assert [steps for steps, _ in itertools.groupby(found)] == [before, between, after]


@pytest.mark.parametrize(
    "change",
    [
        lambda checkpoint: checkpoint.pop("optimizer_states"),
        lambda checkpoint: checkpoint["gptmini"].pop("validated_step"),
    ],
)
def test_a_training_state_that_lacks_a_part_is_refused(path, change):
    own = {
        "data": {"folder": "data/mine", "fingerprint": "abc"},
        "max_steps": 9,
        "validated_step": 5,
        "bad_steps": [2, 1],
    }
    checkpoint = make() | {"optimizer_states": [{"state": {}}], "callbacks": {}, "global_step": 7}
    checkpoint["gptmini"] |= own
    state = TrainingState.parse(checkpoint, path)
    assert (state.step, state.max_steps, state.validated_step) == (7, 9, 5)
    assert (state.bad_steps, state.bad_steps_in_a_row) == (2, 1)

    change(checkpoint)
    wanted = r"best\.ckpt has no training state"
    with pytest.raises(UserError, match=wanted):
        TrainingState.parse(checkpoint, path)
