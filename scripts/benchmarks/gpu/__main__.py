"""What a GPU is to show: its peak, checks, two runs, the speed ladder at 124 M parameters, a peer, kernels, sampling.

Prints a table, and saves it as JSON row by row. Begins no row for which the minutes that are left will probably not do.
Exits with 1 if a check failed. --dry-run does every part on the CPU, at toy sizes, so that only the lines for a GPU
alone meet a GPU untried.
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

import torch

from gptmini.commands.errors import Parser
from gptmini.hardware import keep_freed_memory
from gptmini.user_error import UserError

from .checks import run_checks
from .kernels import measure_kernels
from .ladder import measure_ladder
from .machine import measure_machine
from .peer import measure_peer
from .runs import measure_runs
from .sampling import measure_sampling
from .setting import FULL, TOY, Setting
from .table import Table, earlier_rows

# The function of each part, in the order in which all parts are measured.
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
# Share of the time left that the checks may take when other parts are measured too.
CHECKS_SHARE = 0.5


def main() -> None:
    """Measure the parts that were asked for, and exit with 1 if a check failed."""
    arguments = parse_arguments()
    table = Table(
        path=arguments.out,
        deadline=time.monotonic() + 60 * arguments.minutes,
        rows=earlier_rows(arguments.out, arguments.only),
    )
    only_checks = list(arguments.only) == ["checks"]

    keep_freed_memory()
    surroundings = toys_computed_cheaply() if arguments.dry_run else nullcontext()
    with tempfile.TemporaryDirectory() as folder, surroundings:
        setting = Setting(
            table=table,
            scale=TOY if arguments.dry_run else FULL,
            device="cpu" if arguments.dry_run else "cuda",
            nanogpt=arguments.peer_nanogpt,
            shakespeare=arguments.shakespeare,
            folder=Path(folder),
            checks_share=1.0 if only_checks else CHECKS_SHARE,
        )
        for part in arguments.only:
            PARTS[part](setting)

    failed = []
    if "checks" in arguments.only:  # without them the table may hold checks of an earlier call
        checks = [row for row in table.rows if row["part"] == "checks"]
        failed = [row for row in checks if row["status"] == "failed"]
    print(f"{len(table.rows)} rows in {arguments.out}; {len(failed)} checks failed")
    if failed:
        sys.exit(1)


def parse_arguments() -> argparse.Namespace:
    """Read the command line, and check what it names before minutes are spent.

    Raises:
        UserError: no GPU is here, and --dry-run was not asked for.
    """
    parser = Parser(prog="benchmark.py gpu", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=tuple(PARTS),
        metavar="PART",
        help=f"the parts to measure, of {', '.join(PARTS)} (default: all)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="minutes after which no row is begun (default: %(default)s)",
    )
    parser.add_argument(
        "--peer-nanogpt",
        type=Path,
        metavar="FOLDER",
        help="a checkout of nanoGPT to measure beside gptmini",
    )
    parser.add_argument(
        "--shakespeare",
        type=Path,
        metavar="FILE",
        help="the text of tinyshakespeare, for a machine without a network",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="the file of the table, as JSON (default: gpu.json, in a dry run gpu-dry-run.json)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="try every part on the CPU, at toy sizes",
    )

    arguments = parser.parse_args()
    if arguments.out is None:
        arguments.out = Path("gpu-dry-run.json" if arguments.dry_run else "gpu.json")

    check_arguments(parser, arguments)
    return arguments


def check_arguments(parser: Parser, arguments: argparse.Namespace) -> None:
    """Refuse what cannot be measured or written, in one line.

    Raises:
        UserError: no GPU is here, and --dry-run was not asked for.
    """
    if not arguments.minutes > 0:
        parser.error("--minutes must be above 0")

    nanogpt = arguments.peer_nanogpt
    if nanogpt is not None and not (nanogpt / "train.py").is_file():
        parser.error(
            f"--peer-nanogpt must be a checkout of nanoGPT with its train.py, got {nanogpt}"
        )
    shakespeare = arguments.shakespeare
    if shakespeare is not None and not shakespeare.is_file():
        parser.error(f"--shakespeare must be a file, got {shakespeare}")
    if arguments.out.is_dir() or not arguments.out.parent.is_dir():
        parser.error(f"--out must be a file in a folder that is there, got {arguments.out}")

    if not arguments.dry_run and not torch.cuda.is_available():
        raise UserError(
            "this measures a CUDA GPU, and none is here; --dry-run tries every part on the CPU"
        )


@contextmanager
def toys_computed_cheaply() -> Iterator[None]:
    """Compute on one thread, here and in every process that is started, and have torch.compile generate no code."""
    # Toy tensors gain nothing from a second thread, and lose much to it on cores that something else keeps busy.
    one_thread = patch.dict(os.environ, OMP_NUM_THREADS="1")
    # Inductor takes half a minute a graph on a CPU, and proves nothing there.
    eager = patch("torch.compile", partial(torch.compile, backend="eager"))

    torch.set_num_threads(1)
    with one_thread, eager:
        yield


if __name__ == "__main__":
    main()
