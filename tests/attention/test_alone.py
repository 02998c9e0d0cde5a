"""The attention room stands on torch alone, and on the class of errors."""

import os
import subprocess
import sys
from pathlib import Path

CHECK = """
loaded = {name.split(".")[0] for name in sys.modules} & {"lightning", "hydra", "omegaconf", "tensorboard", "tiktoken"}
rooms = {name for name in sys.modules if name.startswith("gptmini.")} - {"gptmini.user_error"}
assert not loaded, loaded
assert all(name.startswith("gptmini.attention") for name in rooms), rooms
print("alone")
"""

PROBE = (
    "import sys, torch; from gptmini.attention import CausalMultiHeadAttention; "
    "CausalMultiHeadAttention(24, 6)(torch.zeros(2, 5, 24))" + CHECK
)
COLLECT = (
    "import sys, pytest; assert pytest.main(['--collect-only', '-q', *sys.argv[1:]]) == 0" + CHECK
)


def test_using_attention_loads_no_framework_and_no_other_room():
    result = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False
    )
    assert result.stdout == "alone\n", result.stderr


def test_its_tests_load_no_framework_and_no_other_room():
    """Without pytest's plugins, of which hydra-core registers one; collecting imports all that the tests import."""
    command = [sys.executable, "-c", COLLECT, str(Path(__file__).parent)]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.stdout.endswith("alone\n"), result.stdout + result.stderr
