"""The rooms of gptmini.data import each other in one direction, and its names load without torch."""

import re
import subprocess
import sys
from pathlib import Path

from gptmini import data

ROOMS = ["corpus", "reading", "prepared", "corpora"]  # lowest room first
FOLDER = Path(data.__file__).parent


def test_a_room_imports_only_from_lower_rooms():
    for path in FOLDER.glob("*/*.py"):
        imported = re.findall(r"from gptmini\.data\.(\w+)", path.read_text(encoding="utf-8"))
        allowed = ROOMS[: ROOMS.index(path.parent.name) + 1]
        assert set(imported) <= set(allowed), path


def test_only_tensors_need_torch():
    face = (FOLDER / "__init__.py").read_text(encoding="utf-8")
    names = re.findall(r"from gptmini\.(?!data\.prepared\.batches)\S+ import (\w+) as", face)
    assert len(names) > 20
    program = (
        f"from gptmini.data import {', '.join(names)}; import sys; print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
