"""Two whole runs, as a user starts them: the default run, and the baby GPT on Shakespeare's characters."""

import re
import sys
import time
from collections.abc import Sequence
from functools import partial

from gptmini.commands.overrides import quoted

from .processes import output_of
from .setting import Setting

# Validation losses in nats per token that a CPU reached; docs/results.md lists them too.
ON_THE_CPU = {"pydoc": 3.5222, "shakespeare_char": 1.4335}


def measure_runs(setting: Setting) -> None:
    """Train the default run and experiment=shakespeare_char to their ends, and add a row for each."""
    pydoc = []
    shakespeare = ["experiment=shakespeare_char"]
    if setting.dry:
        # Reading the default run's own text, the help of every module of Python, takes most of a short run's time.
        text = any_text(setting)
        pydoc += text
        shakespeare += text
    elif setting.shakespeare is not None:
        shakespeare.append(f"data.path={quoted(str(setting.shakespeare.resolve()))}")

    for name, overrides in (("pydoc", pydoc), ("shakespeare_char", shakespeare)):
        setting.table.measure("runs", name, partial(whole_run, setting, name, overrides))


def any_text(setting: Setting) -> list[str]:
    """Return the overrides of a dry run's text: the file of --shakespeare, or else a small one that is written here."""
    path = setting.shakespeare
    if path is None:
        path = setting.folder / "text.txt"
        lines = [f"Line {i} is {i * i}.\n" for i in range(300)]
        path.write_text("".join(lines))
    return ["data=text", f"data.path={quoted(str(path.resolve()))}"]


def whole_run(setting: Setting, name: str, overrides: Sequence[str]) -> dict:
    """Train a run in a process of its own.

    Args:
        setting: what all parts share.
        name: the key of the run in ON_THE_CPU.
        overrides: the overrides that make the run, as they are typed after gptmini train.

    Returns:
        Seconds of the whole command, its last speed, and its best validation loss beside that of a CPU.
    """
    command = [
        sys.executable,
        "-m",
        "gptmini",
        "train",
        *overrides,
        f"runs_dir={quoted(str(setting.folder / 'runs_dir'))}",
        f"data_dir={quoted(str(setting.folder / 'data_dir'))}",
        "console=lines",
        *setting.scale.sizes,
        *setting.scale.runs,
    ]
    start = time.monotonic()
    output = output_of(command, timeout=setting.table.left())
    seconds = time.monotonic() - start

    best = re.search(
        r"^best +val loss ([\d.]+), ([\d.]+) bits per byte",
        output,
        flags=re.MULTILINE,
    )
    loss = float(best[1])
    speeds = re.findall(r"([\d,]+) tokens/s", output)
    return {
        "seconds": seconds,
        "val_loss": loss,
        "bits_per_byte": float(best[2]),
        "above_the_cpus": loss - ON_THE_CPU[name],
        "tokens_per_second": float(speeds[-1].replace(",", "")) if speeds else 0.0,
    }
