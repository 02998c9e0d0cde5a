"""Measure a GPU: its peak, checks, two runs, the training speed at 124 M parameters, nanoGPT, kernels and sampling.

A row is skipped if the remaining minutes are probably too few. The exit code is 1 if a check failed. --dry-run runs
every part on the CPU with toy sizes, so that only code for GPUs remains untested.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from gptmini.system.errors import UserError

from ..harness import Table, measure_parts, use_threads
from ..nanogpt import add_nanogpt
from .checks import run_checks
from .ladder import measure_ladder
from .parts import (
    measure_kernels,
    measure_machine,
    measure_peer,
    measure_runs,
    measure_sampling,
)
from .setting import FULL, TOY, Setting

THREADS = None  # torch's default
PARTS = {
    "machine": measure_machine,
    "checks": run_checks,
    "runs": measure_runs,
    "ladder_gpt2": partial(measure_ladder, preset="gpt2"),
    "ladder_modern": partial(measure_ladder, preset="modern"),
    "peer": measure_peer,
    "kernels": measure_kernels,
    "sampling": measure_sampling,
}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("--minutes", type=float, default=9.0, help="minutes after which no row is started")
    add("--shakespeare", type=Path, help="text file of tinyshakespeare, if there is no network")
    add("--dry-run", action="store_true", help="run every part on the CPU with toy sizes")
    add_nanogpt(parser)


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the chosen parts, and exit with 1 if a check failed."""
    if arguments.shakespeare is not None and not arguments.shakespeare.is_file():
        raise UserError(f"--shakespeare must be a file, got {arguments.shakespeare}")
    if not arguments.dry_run and not torch.cuda.is_available():
        raise UserError("this benchmark requires a CUDA GPU; --dry-run runs every part on the CPU")

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
        )
        measure_parts(table, arguments.only, PARTS, setting)

    checks = [row for row in table.rows if row["part"] == "checks"]
    failed = [row for row in checks if row["status"] == "failed"]
    print(f"{len(table.rows)} rows in {arguments.out}; {len(failed)} checks failed")
    if failed and "checks" in arguments.only:  # otherwise an earlier call added these rows
        sys.exit(1)


@contextmanager
def toys_computed_cheaply() -> Iterator[None]:
    """Use one thread, and a backend of torch.compile that generates no code."""
    # More threads do not make toy tensors faster, and make them much slower if other programs use the cores.
    use_threads(1)
    # Inductor takes half a minute per graph on a CPU, and testing it there shows nothing about GPUs.
    with patch("torch.compile", partial(torch.compile, backend="eager")):
        yield
