"""The attention room stands on torch alone."""

import os
import subprocess
import sys

PROBE = """
import sys, torch
from gptmini.attention import CausalMultiHeadAttention
CausalMultiHeadAttention(24, 6)(torch.zeros(2, 5, 24))
loaded = {name.split(".")[0] for name in sys.modules} & {"lightning", "hydra", "omegaconf", "tensorboard", "tiktoken"}
rooms = {name for name in sys.modules if name.startswith("gptmini.")}
assert not loaded, loaded
assert all(name.startswith("gptmini.attention") for name in rooms), rooms
print("alone")
"""


def test_using_attention_loads_no_framework_and_no_other_room():
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, env=environment, check=False)
    assert result.stdout == "alone\n", result.stderr
