"""Kill a real training run again and again, resume it, and compare its end with a run that nobody killed.

Of the part run, a third of the kills falls on start-up, a third on any instant of training, a third inside the write
of a checkpoint. The other parts kill processes of runs on two processes, under every launcher, and a sweep. Exits with
1 if a goal is missed.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from gptmini.user_error import UserError

from ..harness import GPTMINI, Table, met
from .outcomes import INTERVAL, OVERRIDES, count_steps, differing_bits, outcome, reached
from .processes import kill_processes
from .sweeps import kill_sweeps

PARTS = ("run", "processes", "sweep")
USUAL_PARTS = ("run",)

STEPS_A_KILL = 60  # so many that the run is not over before its last kill
KINDS = ("start-up", "training", "write")  # when a kill falls, in turns
RESUME = "resume=runs/latest"
# Bytes of the largest file that a run without room may write; a checkpoint has 5 MB.
ROOM_ON_DISK = 1_000_000


@dataclass
class Tally:
    """What the kills of a run came to so far."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))  # by kind
    n_torn: int = 0  # files that could not be read after a kill
    lost: list[int] = field(default_factory=list)  # steps that each kill cost


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("--kills", type=int, default=50, help="kills of each part (default: %(default)s)")
    add("--seed", type=int, default=1, help="seed of their instants (default: %(default)s)")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Kill what was asked for, and exit with 1 if a goal is missed."""
    functions = {"run": kill_runs, "processes": kill_processes, "sweep": kill_sweeps}
    for part in arguments.only:
        table.part = part
        with tempfile.TemporaryDirectory() as root:
            functions[part](table, arguments.kills, Path(root), random.Random(arguments.seed))

    measured = [row for row in table.rows if row["part"] in arguments.only and row["goal"]]
    if not all(met(row["figure"], row["goal"]) for row in measured):
        sys.exit(1)


def kill_runs(table: Table, n_kills: int, root: Path, random_: random.Random) -> None:
    """Kill and resume a run, then damage copies of its last checkpoint."""
    options = [*OVERRIDES, f"trainer.max_steps={n_kills * STEPS_A_KILL}"]
    straight = root / "straight"
    straight.mkdir()
    if start(straight, *options).wait():
        sys.exit((straight / "output.txt").read_text())

    killed = root / "killed"
    killed.mkdir()
    shutil.copytree(straight / "data", killed / "data")
    tally = kill_and_resume(killed, options, n_kills, random_)

    # A run without room on the disk for its checkpoints fails, and the next one goes on from the files before.
    start(killed, RESUME, "trainer.max_time=5", limit=ROOM_ON_DISK).wait()
    _, n_torn = newest(killed)
    tally.n_torn += n_torn
    end = start(killed, RESUME, "trainer.max_time=null").wait()

    kills = ", ".join(f"{n} in {kind}" for kind, n in tally.kills.items())
    table.add("kills", sum(tally.kills.values()), kinds=kills)
    table.add("torn files after a kill", tally.n_torn, goal="0")
    what = f"most steps lost, with {INTERVAL} steps between checkpoints"
    table.add(what, max(tally.lost, default=0), goal=f"at most {INTERVAL}")
    table.add("exit code of the run that goes on after a full disk", end, goal="0")
    what = "bits that differ at the end in weights, optimizer, curves or samples"
    table.add(what, differing_bits(outcome(straight), outcome(killed)), goal="0")

    checkpoint = next(killed.glob("runs/*/*/checkpoints/last.ckpt"))
    n_copies = 4 * n_kills
    refused, different = damage(checkpoint, n_copies, random_)
    table.add("damaged copies of a checkpoint", n_copies, refused=refused)
    table.add("of these, read with other weights", different, goal="0")


def start(folder: Path, *arguments: str, limit: int | None = None) -> subprocess.Popen:
    """Start training in a process of its own.

    Args:
        folder: the process's working folder, which gets its output and the counter of its steps.
        arguments: the overrides.
        limit: the largest file that the process may write, in bytes; None for no limit.
    """

    def restrict() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    counting = count_steps(folder)
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            [*GPTMINI, "train", *arguments, counting],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=restrict if limit else None,
        )


def kill_and_resume(
    folder: Path, options: list[str], n_kills: int, random_: random.Random
) -> Tally:
    """Start a run, and kill and resume it n_kills times, or until it is over."""
    tally = Tally()
    for i in range(n_kills):
        # A run that was killed during its first start-up has no folder yet, and starts anew.
        has_begun = (folder / "runs" / "latest").exists()
        process = start(folder, RESUME) if has_begun else start(folder, *options)

        kind = KINDS[i % len(KINDS)]
        if not kill_once(folder, process, kind, random_.random()):
            break
        tally.kills[kind] += 1
        step, n_torn = newest(folder)
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
    process.send_signal(signal.SIGKILL)
    process.wait()
    return not had_ended


def newest(folder: Path) -> tuple[int, int]:
    """Return the step of the newest checkpoint below a folder, and how many checkpoints cannot be read."""
    from gptmini.checkpoint.file import read_checkpoint

    steps = [0]
    n_torn = 0
    for path in folder.glob("runs/*/*/checkpoints/*.ckpt"):
        try:
            steps.append(read_checkpoint(path)["global_step"])
        except UserError as error:
            n_torn += 1
            print(f"torn: {error}")
    return max(steps), n_torn


def damage(path: Path, n: int, random_: random.Random) -> tuple[int, int]:
    """Make n damaged copies of a checkpoint, cut at some byte or with one bit flipped, and read them.

    Returns:
        How many copies are refused, and how many are read with other weights than the checkpoint has.
    """
    from gptmini.checkpoint.file import read_checkpoint

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
