"""A package imports its names at their first use."""

import subprocess
import sys


def test_a_name_is_imported_at_its_first_use(tmp_path):
    face = """
from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names

if TYPE_CHECKING:
    from house.room import chair as chair
    from house.room import table
else:
    __getattr__ = lazy_names(__name__)
"""
    (tmp_path / "house").mkdir()
    (tmp_path / "house/__init__.py").write_text(face)
    (tmp_path / "house/room.py").write_text("print('room'); chair = 4; table = 5")

    program = "import house; print('house'); from house import chair; print(chair); house.table"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.stdout.split() == ["house", "room", "4"]
    assert "module 'house' has no attribute 'table'" in result.stderr
