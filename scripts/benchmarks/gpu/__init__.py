"""What a GPU is to show: its peak, checks, two runs, the speed ladder at 124 M parameters, a peer, kernels, sampling.

Begins no row for which the minutes that are left will probably not do. Exits with 1 if a check failed. --dry-run does
every part on the CPU, at toy sizes, so that only the lines for a GPU alone meet a GPU untried.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

from gptmini.user_error import UserError

from ..harness import Table
from ..nanogpt import check_checkout

PARTS = (
    "machine",
    "checks",
    "runs",
    "ladder_gpt2",
    "ladder_modern",
    "peer",
    "kernels",
    "sampling",
)
THREADS = None  # as many as torch takes by itself


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("--minutes", type=float, default=9.0, help="minutes after which no row is begun")
    add("--nanogpt", "--peer-nanogpt", type=Path, help="a checkout of nanoGPT, for the part peer")
    add("--shakespeare", type=Path, help="the text of tinyshakespeare, where no network is")
    add("--dry-run", action="store_true", help="try every part on the CPU, at toy sizes")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the parts that were asked for, and exit with 1 if a check failed."""
    check_arguments(arguments)

    from . import parts
    from .checks import run_checks
    from .ladder import measure_ladder
    from .setting import FULL, TOY, Setting

    functions = {
        "machine": parts.measure_machine,
        "checks": run_checks,
        "runs": parts.measure_runs,
        "ladder_gpt2": partial(measure_ladder, preset="gpt2"),
        "ladder_modern": partial(measure_ladder, preset="modern"),
        "peer": parts.measure_peer,
        "kernels": parts.measure_kernels,
        "sampling": parts.measure_sampling,
    }
    surroundings = toys_computed_cheaply() if arguments.dry_run else nullcontext()
    with tempfile.TemporaryDirectory() as folder, surroundings:
        setting = Setting(
            table=table,
            scale=TOY if arguments.dry_run else FULL,
            device="cpu" if arguments.dry_run else "cuda",
            nanogpt=arguments.nanogpt,
            shakespeare=arguments.shakespeare,
            folder=Path(folder),
            deadline=time.monotonic() + 60 * arguments.minutes,
            # Of the time left, the share that the checks may take.
            checks_share=1.0 if arguments.only == ["checks"] else 0.5,
        )
        for part in arguments.only:
            table.part = part
            functions[part](setting)

    checks = [row for row in table.rows if row["part"] == "checks"]
    failed = [row for row in checks if row["status"] == "failed"]
    print(f"{len(table.rows)} rows in {arguments.out}; {len(failed)} checks failed")
    if failed and "checks" in arguments.only:  # otherwise they are of an earlier call
        sys.exit(1)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before minutes are spent."""
    import torch

    if not arguments.minutes > 0:
        raise UserError("--minutes must be above 0")
    check_checkout(arguments.nanogpt)
    if arguments.shakespeare is not None and not arguments.shakespeare.is_file():
        raise UserError(f"--shakespeare must be a file, got {arguments.shakespeare}")
    if not arguments.dry_run and not torch.cuda.is_available():
        raise UserError(
            "this measures a CUDA GPU, and none is here; --dry-run tries every part on the CPU"
        )


@contextmanager
def toys_computed_cheaply() -> Iterator[None]:
    """Compute on one thread, here and in every process that is started, and have torch.compile generate no code."""
    import torch

    # Toy tensors gain nothing from a second thread, and lose much to it on cores that something else keeps busy.
    one_thread = patch.dict(os.environ, OMP_NUM_THREADS="1")
    # Inductor takes half a minute a graph on a CPU, and proves nothing there.
    eager = patch("torch.compile", partial(torch.compile, backend="eager"))

    torch.set_num_threads(1)
    with one_thread, eager:
        yield
