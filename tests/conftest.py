"""Settings for all tests."""

import os
import signal

import pytest

# Tensors here are tiny and several tests run at once, so more threads would only wait for each other. torch reads the
# variable on import, in the tests and in the programs that they start.
os.environ["OMP_NUM_THREADS"] = "1"

# A command sets this for its ranks before it imports torch. A rank forked from a test has imported torch already.
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"

# A shell ignores Ctrl-C for background jobs, and programs started by the tests would inherit this. Some tests stop
# them with Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _same_processor(monkeypatch):
    """Let every processor choose as one without instructions for bf16. Tests of the choice set both answers."""
    import torch  # after OMP_NUM_THREADS is set

    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
