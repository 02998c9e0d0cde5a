"""Sampling: benchmark.py sampling in a process of its own, whose rows join the table."""

import json
import shlex
import sys
from functools import partial
from pathlib import Path

from .fits import give_back_memory
from .processes import ROOT, output_of
from .setting import Setting
from .table import Table


def measure_sampling(setting: Setting) -> None:
    """Add a row for each batch size: gptmini beside Hugging Face's static cache, and the bandwidth's limit."""
    setting.table.measure("sampling", "benchmark.py sampling", partial(sample, setting))


def sample(setting: Setting) -> dict:
    """Run benchmark.py sampling, add the rows that it measured, and return how many they are."""
    give_back_memory(setting.device)
    path = setting.folder / "sampling.json"
    command = [
        sys.executable,
        str(ROOT / "scripts" / "benchmark.py"),
        "sampling",
        *shlex.split(setting.scale.sampling),
        f"--device={setting.device}",
        f"--json={path}",
    ]
    if setting.nanogpt is not None and not setting.dry:
        command.append(f"--nanogpt={setting.nanogpt.resolve()}")

    try:
        output_of(command, timeout=setting.table.left())
    finally:
        # Rows that were measured before the command failed or time was over are worth having.
        n_rows = add_rows(setting.table, path)
    return {"rows": n_rows}


def add_rows(table: Table, path: Path) -> int:
    """Add the rows of a file that benchmark.py sampling wrote, if it is there, and return their number."""
    if not path.is_file():
        return 0

    rows = json.loads(path.read_text())
    for row in rows:
        size = row.pop("size")
        batch_size = row.pop("batch_size")
        table.add("sampling", f"{size}, batch {batch_size}, tokens/s", "measured", **row)
    return len(rows)
