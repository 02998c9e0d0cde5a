"""What reading an input ends in: a value, a refusal in one line of gptmini's own, or a failed test."""

import io
import signal
import sys
import traceback
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import gptmini
from gptmini.commands import errors
from gptmini.user_error import UserError

resource = pytest.importorskip("resource")  # POSIX alone has it, as it has alarms

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 10  # seconds in which anything so small is read, on a busy machine
UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, in which getrusage counts memory
ROOM = 2**30 // UNIT  # a gigabyte


@contextmanager
def limited():
    """Fail if this context takes long, or much memory."""
    late = []

    def interrupt(*_):
        late.append(True)
        raise TimeoutError

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handler = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)

    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        assert not late, f"takes more than {PATIENCE} s"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ROOM


def outcome(read, *arguments):
    """What read returns, or None if it refuses. A refusal is a UserError of one line, raised by a line of gptmini."""
    try:
        with limited():
            return read(*arguments)
    except UserError as caught:
        error = caught

    raised_by = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    ours = any(raised_by.is_relative_to(ROOT / folder) for folder in ("gptmini", "scripts"))
    assert ours, f"{raised_by} says: {error}"
    assert len(str(error).splitlines()) == 1, str(error)
    return None


def refused(act):
    """Whether act ends as a mistake does on the command line: exit code 2 and one line on stderr."""
    said = io.StringIO()

    try:
        with redirect_stderr(said), limited(), errors.one_line_errors():
            act()
        return False
    except SystemExit as end:
        code = end.code
    except RecursionError:  # pytest takes minutes to print one of Hydra's
        raise AssertionError("ends in a RecursionError") from None

    assert code == 2
    assert [line[:7] for line in said.getvalue().splitlines()] == ["error: "]
    assert said.getvalue() != "error: \n"
    return True


def load(path):
    """Weights, configuration and tokenizer of a checkpoint that can be sampled from."""
    model, tokens = gptmini.load(path)
    model(torch.tensor([[3, 1, 4]]))
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return weights, asdict(model.config), tokens.to_dict()
