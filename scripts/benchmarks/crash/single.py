"""Kill and resume a run on one process, and read damaged copies of its checkpoint."""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from gptmini.checkpoint.file import read_checkpoint
from gptmini.user_error import UserError

from ..harness import GPTMINI, Table
from .outcomes import differing_bits, outcome
from .running import INTERVAL, OVERRIDES, count_steps, reached, said_in, saved, start

STEPS_A_KILL = 60  # so many that the run is not over before its last kill
KINDS = ("start-up", "training", "write")  # when a kill falls, in turns
RESUME = "resume=runs/latest"


@dataclass
class Tally:
    """What the kills of a run came to so far."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))  # by kind
    n_torn: int = 0  # files that could not be read after a kill
    lost: list[int] = field(default_factory=list)  # steps that each kill cost


def kill_runs(table: Table, arguments: argparse.Namespace) -> None:
    """Kill and resume a run, then damage copies of its last checkpoint."""
    n_kills = arguments.kills
    random_ = random.Random(arguments.seed)
    options = [*OVERRIDES, f"trainer.max_steps={n_kills * STEPS_A_KILL}"]
    with tempfile.TemporaryDirectory() as root:
        straight = Path(root, "straight")
        straight.mkdir()
        if train(straight, *options).wait():
            sys.exit(said_in(straight))

        killed = Path(root, "killed")
        killed.mkdir()
        shutil.copytree(straight / "data", killed / "data")
        tally = kill_and_resume(killed, options, n_kills, random_)
        if train(killed, RESUME).wait():
            sys.exit(said_in(killed))
        bits = differing_bits(outcome(straight), outcome(killed))

        checkpoint = next(killed.glob("runs/*/*/checkpoints/last.ckpt"))
        n_copies = 4 * n_kills
        refused, different = damage(checkpoint, n_copies, random_)

    kills = ", ".join(f"{n} in {kind}" for kind, n in tally.kills.items())
    table.add("kills", sum(tally.kills.values()), kinds=kills)
    table.add("torn files after a kill", tally.n_torn, goal="0")
    what = f"most steps lost, with {INTERVAL} steps between checkpoints"
    table.add(what, max(tally.lost, default=0), goal=f"at most {INTERVAL}")
    what = "bits that differ at the end in weights, optimizer, curves or samples"
    table.add(what, bits, goal="0")
    table.add("damaged copies of a checkpoint", n_copies, refused=refused)
    table.add("of these, read with other weights", different, goal="0")


def train(folder: Path, *overrides: str) -> subprocess.Popen:
    """Start training in a folder, which gets a counter of its steps."""
    return start(folder, [*GPTMINI, "train", *overrides, count_steps(folder)])


def kill_and_resume(
    folder: Path, options: list[str], n_kills: int, random_: random.Random
) -> Tally:
    """Start a run, and kill and resume it n_kills times, or until it is over."""
    tally = Tally()
    for i in range(n_kills):
        # A run that was killed during its first start-up has no folder yet, and starts anew.
        has_begun = (folder / "runs" / "latest").exists()
        process = train(folder, RESUME) if has_begun else train(folder, *options)

        kind = KINDS[i % len(KINDS)]
        if not kill_once(folder, process, kind, random_.random()):
            break
        tally.kills[kind] += 1
        step, n_torn = saved(folder)
        tally.n_torn += n_torn
        tally.lost.append(reached(folder) - step)
    return tally


def kill_once(folder: Path, process: subprocess.Popen, kind: str, fraction: float) -> bool:
    """Kill a process with SIGKILL.

    Args:
        folder: the process's working folder.
        process: the training process.
        kind: start-up, training or write, as in KINDS.
        fraction: from 0 to 1, the instant within the seconds or milliseconds that the kind lasts.

    Returns:
        Whether the process was still running when it was killed.
    """
    before = reached(folder)
    while kind != "start-up" and reached(folder) == before and process.poll() is None:
        time.sleep(0.002)

    if kind == "start-up":
        time.sleep(4 * fraction)
    elif kind == "training":
        time.sleep(fraction)
    else:
        # A write takes milliseconds, so this loop does not sleep.
        while not any(folder.glob("runs/*/*/checkpoints/.*.tmp")) and process.poll() is None:
            pass
        time.sleep(fraction / 100)

    had_ended = process.poll() is not None
    process.kill()
    process.wait()
    return not had_ended


def damage(path: Path, n: int, random_: random.Random) -> tuple[int, int]:
    """Make n damaged copies of a checkpoint, cut at some byte or with one bit flipped, and read them.

    Returns:
        How many copies are refused, and how many are read with other weights than the checkpoint has.
    """
    whole = path.read_bytes()
    weights = read_checkpoint(path)["state_dict"]
    copy = path.with_name("copy.ckpt")
    refused = 0
    different = 0
    for i in range(n):
        if i % 2:
            data = bytearray(whole[: random_.randrange(len(whole))])
        else:
            data = bytearray(whole)
            data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)

        copy.write_bytes(data)
        try:
            loaded = read_checkpoint(copy)["state_dict"]
        except UserError:
            refused += 1
        else:
            different += any(not tensor.equal(loaded[name]) for name, tensor in weights.items())

    copy.unlink()
    return refused, different
