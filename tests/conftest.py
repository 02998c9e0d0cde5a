"""What every test has."""

import os
import signal

# Tensors here are tiny, and several tests run at once: further threads would only wait for each other. torch reads the
# variable when it is first imported, in the tests and in the programs that they start.
os.environ["OMP_NUM_THREADS"] = "1"

# As a command sets it for its ranks before it imports torch: a rank that is forked from a test has torch already.
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"

# A shell turns Ctrl-C off for what it starts in the background, and the programs that tests stop by Ctrl-C would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
