"""Kill a real training run again and again, resume it, and compare its end with a run that nobody killed.

A third of the kills falls on start-up, a third on any instant of training, a third inside the write of a checkpoint.
"""

import argparse
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from gptmini.commands.errors import Parser
from gptmini.user_error import UserError

from .outcomes import INTERVAL, OVERRIDES, count_steps, differing_bits, outcome, reached
from .processes import kill_processes
from .sweeps import kill_sweeps

STEPS_A_KILL = 60  # so many that the run is not over before its last kill
KINDS = ("start-up", "training", "write")  # when a kill falls, in turns
RESUME = "resume=runs/latest"
ROOM_ON_DISK = (
    1_000_000  # bytes of the largest file that a run without room may write; a checkpoint has 5 MB
)


@dataclass
class Tally:
    """What the kills of a run came to so far."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))  # by kind
    n_resumes: int = 0
    n_torn: int = 0  # files that could not be read after a kill
    lost: list[int] = field(default_factory=list)  # steps that each kill cost


def main() -> None:
    """Print kills, torn files, lost steps and differing bits; exit with 1 if a file is torn or a bit differs."""
    arguments = parse_arguments()
    random_ = random.Random(arguments.seed)
    if arguments.of != "run":
        kill_others = kill_processes if arguments.of == "processes" else kill_sweeps
        with tempfile.TemporaryDirectory() as root:
            sys.exit(0 if kill_others(arguments.kills, Path(root), random_) else 1)
    options = [*OVERRIDES, f"trainer.max_steps={arguments.kills * STEPS_A_KILL}"]
    n_copies = 4 * arguments.kills

    with tempfile.TemporaryDirectory() as root:
        straight = Path(root) / "straight"
        straight.mkdir()
        if start(straight, *options).wait():
            sys.exit((straight / "output.txt").read_text())

        killed = Path(root) / "killed"
        killed.mkdir()
        shutil.copytree(straight / "data", killed / "data")
        tally = kill_and_resume(killed, options, arguments.kills, random_)

        # A run without room on the disk for its checkpoints fails, and the next one goes on from the files before.
        limited = start(killed, RESUME, "trainer.max_time=5", limit=ROOM_ON_DISK).wait()
        _, n_torn = newest(killed)
        tally.n_torn += n_torn
        end = start(killed, RESUME, "trainer.max_time=null").wait()
        tally.n_resumes += 2

        bits = differing_bits(outcome(straight), outcome(killed))
        checkpoint = next(killed.glob("runs/*/*/checkpoints/last.ckpt"))
        refused, different = damage(checkpoint, n_copies, random_)

    by_kind = ", ".join(f"{n} in {kind}" for kind, n in tally.kills.items())
    most_lost = max(tally.lost)
    median_lost = statistics.median(tally.lost)
    print(f"kills            {sum(tally.kills.values())}: {by_kind}")
    print(f"resumes          {tally.n_resumes}")
    print(f"torn files       {tally.n_torn}")
    print(
        f"lost steps       at most {most_lost} of {INTERVAL} between checkpoints, "
        f"median {median_lost:.0f}"
    )
    print(
        f"no room on disk  exit code {limited} with files of 1 MB at most; "
        f"resumed after that: exit code {end}"
    )
    print(f"differing bits   {bits} in weights, optimizer, curves and samples")
    print(f"damaged copies   {n_copies}: {refused} refused, {different} loaded with other values")

    early = 1e6 * seconds_of_first_batch(10)
    late = 1e6 * seconds_of_first_batch(10_000_000)
    print(f"first batch      {early:.0f} us at step 10, {late:.0f} us at step 10,000,000")
    if tally.n_torn or bits or different or end or most_lost > INTERVAL:
        sys.exit(1)


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = Parser(prog="benchmark.py crash", description=__doc__)
    parser.add_argument(
        "--kills",
        type=int,
        default=50,
        help="how often the run is killed (default: %(default)s)",
    )
    parser.add_argument(
        "--of",
        choices=("run", "processes", "sweep"),
        default="run",
        help="what is killed: a run of one process, processes of runs of two under every launcher, or a sweep "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="seed of the instants at which it is killed (default: %(default)s)",
    )

    arguments = parser.parse_args()
    if arguments.kills < 1:
        parser.error("--kills must be at least 1")
    return arguments


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
            [sys.executable, "-m", "gptmini", "train", *arguments, counting],
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
        tally.n_resumes += int(has_begun)
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


def seconds_of_first_batch(step: int, times: int = 50) -> float:
    """Return the median seconds that a run resumed at a step takes to find and cut its first batch.

    Args:
        step: the step, in a text of a million tokens.
        times: how often the batch is cut.
    """
    import numpy as np

    from gptmini.data.batches import gather, step_sequences, window_starts

    data = np.zeros(1_000_000, dtype=np.uint16)
    took = []
    for _ in range(times):
        began = time.perf_counter()
        sequences = step_sequences(
            step,
            0,
            global_batch_size=16,
            batch_size=16,
            rank=0,
            n_ranks=1,
        )
        starts = window_starts(sequences, n_tokens=len(data), context_length=128, seed=1)
        gather(data, starts, 128)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


if __name__ == "__main__":
    main()
