"""Kill a real training run again and again, resume it, and compare its end with a run that nobody killed.

A third of the kills falls on start-up, a third on any instant of training, a third inside the write of a checkpoint.
"""

import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gptmini.checks import UserError
from gptmini.commands.errors import Parser

TRAIN = Path(__file__).resolve().parent.parent / "train.py"
INTERVAL = 20  # steps between checkpoints
STEPS_A_KILL = 60  # so that the run is not over before its last kill
# A small default run whose checkpoints, 5 MB, take long enough to be hit while they are written.
OVERRIDES = (
    "model.d_model=64",
    "model.n_layers=2",
    "model.n_heads=2",
    "model.context_length=32",
    "model.dropout=0.1",
    "trainer.global_batch_size=4",
    "trainer.batch_size=2",
    "trainer.val_every_steps=100",
    "trainer.val_tokens=512",
    "trainer.threads=1",
    "trainer.device=cpu",
    "callbacks.scalars.every_steps=5",
    f"callbacks.checkpoints.every_steps={INTERVAL}",
    "callbacks.samples.max_new_tokens=8",
    "callbacks.pictures=null",
)
# scripts/train.py itself, which also leaves the newest step in a file; what is killed must not have to tell it.
RUNNER = """
import os, runpy, sys
from gptmini.training import GPTModule

script, counter, *arguments = sys.argv[1:]
sys.argv[:] = [script, *arguments]
file = os.open(counter, os.O_WRONLY | os.O_CREAT)
end = GPTModule.on_train_batch_end

def count(module, *batch):
    os.pwrite(file, module.trainer.global_step.to_bytes(8, "little"), 0)
    return end(module, *batch)

GPTModule.on_train_batch_end = count
runpy.run_path(script, run_name="__main__")
"""


def start(folder: Path, *arguments: str, limit: int | None = None) -> subprocess.Popen:
    """A training process in folder; limit is the largest file, in bytes, that it may write."""

    def restrict() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(TRAIN), str(folder / "counter"), *arguments],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=restrict if limit else None,
        )


def reached(folder: Path) -> int:
    """Newest step that the process in folder has finished."""
    path = folder / "counter"
    return int.from_bytes(path.read_bytes(), "little") if path.exists() else 0


def kill_once(folder: Path, process: subprocess.Popen, kind: str, seconds: float) -> bool:
    """Kill the process at the instant that kind and seconds name; False if it had ended before."""
    before = reached(folder)
    while kind != "start-up" and reached(folder) == before and process.poll() is None:
        time.sleep(0.002)

    if kind == "start-up":
        time.sleep(4 * seconds)
    elif kind == "training":
        time.sleep(seconds)
    else:
        while not any(folder.glob("runs/*/*/checkpoints/.*.tmp")) and process.poll() is None:
            pass  # a write lasts milliseconds
        time.sleep(seconds / 100)

    ended = process.poll() is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return not ended


def newest(folder: Path) -> tuple[int, int]:
    """Step of the newest checkpoint, and how many of the files cannot be read."""
    from gptmini.model.checkpoint import read_checkpoint

    steps = [0]
    torn = 0
    for path in folder.glob("runs/*/*/checkpoints/*.ckpt"):
        try:
            steps.append(read_checkpoint(path)["global_step"])
        except UserError as error:
            torn += 1
            print(f"torn: {error}")
    return max(steps), torn


def outcome(folder: Path) -> dict:
    """Every tensor at the end of the run, and every point of its curves but the speed."""
    import logging

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from gptmini.model.checkpoint import read_checkpoint

    (run,) = (path.parent for path in folder.glob("runs/*/*/config.yaml") if path.parent.parent.name != "latest")
    last = read_checkpoint(run / "checkpoints" / "last.ckpt")
    values = {f"weights {name}": tensor for name, tensor in last["state_dict"].items()}
    for name, moments in last["optimizer_states"][0]["state"].items():
        values |= {f"optimizer {name} {moment}": tensor for moment, tensor in moments.items()}

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of every superseded point
    events = EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    for tag in events.Tags()["scalars"]:
        if not tag.startswith("work/"):  # time and memory are not part of the run
            values[tag] = [(point.step, point.value) for point in events.Scalars(tag)]
    texts = events.Tensors("samples/text_summary")
    values["samples"] = [(text.step, text.tensor_proto.string_val[0]) for text in texts]
    values["steps"] = last["global_step"]
    return values


def differing_bits(one: dict, other: dict) -> int:
    """Bits that differ between two outcomes; a value that is missing, or no tensor, counts as one, and is named."""
    import torch

    bits = 0
    for name in one.keys() | other.keys():
        a = one.get(name)
        b = other.get(name)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape:
            x, y = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (a, b))
            bits += sum(int(byte).bit_count() for byte in (x ^ y)[x != y])
        elif a != b:
            bits += 1
            print(f"differs: {name}\n  {a}\n  {b}")
    return bits


def damage(path: Path, n: int, random_: random.Random) -> tuple[int, int]:
    """Cut or flip copies of a checkpoint n times: how many are refused, and how many load with other values."""
    from gptmini.model.checkpoint import read_checkpoint

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
            different += any(not tensor.equal(loaded[name]) for name, tensor in weights.items())
        except UserError:
            refused += 1
    copy.unlink()
    return refused, different


def seconds_of_first_batch(step: int, times: int = 50) -> float:
    """Median time to find and cut the batch of a step, as a resumed run does, in a million tokens."""
    import numpy as np

    from gptmini.data.batches import gather, step_sequences, window_starts

    data = np.zeros(1_000_000, dtype=np.uint16)
    took = []
    for _ in range(times):
        began = time.perf_counter()
        sequences = step_sequences(step, 0, global_batch_size=16, batch_size=16, rank=0, n_ranks=1)
        starts = window_starts(sequences, n_tokens=len(data), context_length=128, seed=1)
        gather(data, starts, 128)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def main() -> None:
    """Print kills, torn files, lost steps and differing bits; exit code 1 unless they are as they must be."""
    parser = Parser(prog="benchmark.py crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="how often to kill (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the instants (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.kills < 1:
        parser.error("--kills must be at least 1")

    random_ = random.Random(arguments.seed)
    options = (*OVERRIDES, f"trainer.max_steps={arguments.kills * STEPS_A_KILL}")
    kills = dict.fromkeys(("start-up", "training", "write"), 0)
    n_resumes = 0
    torn = 0
    lost = []
    with tempfile.TemporaryDirectory() as root:
        straight = Path(root) / "straight"
        straight.mkdir()
        if start(straight, *options).wait():
            sys.exit((straight / "output.txt").read_text())

        killed = Path(root) / "killed"
        killed.mkdir()
        shutil.copytree(straight / "data", killed / "data")
        for i in range(arguments.kills):
            resumed = (killed / "runs" / "latest").exists()
            n_resumes += resumed
            process = start(killed, *(("resume=runs/latest",) if resumed else options))
            kind = list(kills)[i % 3]
            if not kill_once(killed, process, kind, random_.random()):
                break
            kills[kind] += 1
            step, newly_torn = newest(killed)
            torn += newly_torn
            lost.append(reached(killed) - step)

        limited = start(killed, "resume=runs/latest", "trainer.max_time=5", limit=1_000_000).wait()
        _, newly_torn = newest(killed)
        torn += newly_torn
        n_resumes += 2
        end = start(killed, "resume=runs/latest", "trainer.max_time=null").wait()

        bits = differing_bits(outcome(straight), outcome(killed))
        checkpoint = next(killed.glob("runs/*/*/checkpoints/last.ckpt"))
        refused, different = damage(checkpoint, 4 * arguments.kills, random_)

    print(f"kills            {sum(kills.values())}: {', '.join(f'{n} in {kind}' for kind, n in kills.items())}")
    print(f"resumes          {n_resumes}")
    print(f"torn files       {torn}")
    print(
        f"lost steps       at most {max(lost)} of {INTERVAL} between checkpoints, median {statistics.median(lost):.0f}"
    )
    print(f"no room on disk  exit code {limited} with files of 1 MB at most; resumed after that: exit code {end}")
    print(f"differing bits   {bits} in weights, optimizer, curves and samples")
    print(f"damaged copies   {4 * arguments.kills}: {refused} refused, {different} loaded with other values")
    early = seconds_of_first_batch(10)
    late = seconds_of_first_batch(10_000_000)
    print(f"first batch      {1e6 * early:.0f} us at step 10, {1e6 * late:.0f} us at step 10,000,000")
    if torn or bits or different or end or max(lost) > INTERVAL:
        sys.exit(1)


if __name__ == "__main__":
    main()
