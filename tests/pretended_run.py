"""A program that replaces gptmini train folder=... in tests: it writes a run's files in a second, without torch.

It starts in its folder or resumes from the latest checkpoint there. A finished run prints that it is finished. The loss
is a function of the overrides. The program exits with 2 if the folder is locked or the learning rate is above 1. At
SIGTERM, it saves and exits with 143. Next to the folder, it records each start and each step that is in a checkpoint.
"""

import io
import json
import os
import pickle
import signal
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

STEPS = 10
SECONDS_OF_STEP = float(os.environ.get("SECONDS_OF_STEP", "0.02"))
SIGNALS = []


def loss_of(values):
    """Return an artificial loss of the values."""
    return sum(len(key) * float(value) for key, value in values.items() if is_number(value))


def is_number(text):
    return text.replace(".", "").replace("e-", "").isdigit()


def save(folder, step, best):
    """Write last.ckpt in torch's format, atomically."""
    contents = io.BytesIO()
    checkpoint = {
        "gptmini": {"format": 1, "data": {"fingerprint": "abc"}},
        "state_dict": {},
        "global_step": step,
        "callbacks": {"RunCheckpoints": {"best": best}},
    }
    with zipfile.ZipFile(contents, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(checkpoint, protocol=2))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    temporary = folder / "checkpoints" / "new"
    temporary.write_bytes(contents.getvalue())
    temporary.replace(folder / "checkpoints" / "last.ckpt")
    (folder / "step.txt").write_text(str(step))


def holds(file):
    """Return whether this process has inherited an open file; Linux lists open files in /proc."""
    found = set()
    for descriptor in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            found.add(descriptor.readlink())
    return file.absolute() in found


def main(overrides):
    signal.signal(signal.SIGTERM, lambda number, frame: SIGNALS.append(number))
    values = dict(line.lstrip("+").split("=", 1) for line in overrides if "=" in line)
    folder = Path(values.pop("folder"))
    place = folder.parent / "notes"
    place.mkdir(parents=True, exist_ok=True)
    notes = place / f"{folder.name}.jsonl"

    def note(**facts):
        with notes.open("a") as file:
            file.write(json.dumps(facts) + "\n")

    variables = [name for name in os.environ if name.startswith(("SLURM", "RANK", "MASTER"))]
    note(
        start=overrides,
        variables=variables,
        gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        session=os.getsid(0) == os.getpid(),
        holds_lock=holds(place.parent / ".locks" / folder.name),
    )
    time.sleep(SECONDS_OF_STEP * 5)  # a real run imports libraries before it locks its folder
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0.5)
    except Timeout:
        note(collision=os.getpid())
        print(f"error: another process is training the run {folder}; stop that process first")
        return 2

    if float(values.get("optimizer.lr", "0")) > 1:
        print("some output\nerror: 10 steps in a row, to step 10, had a loss that is not finite")
        return 2
    if not (folder / "config.yaml").exists():
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(json.dumps({"trainer": {"max_steps": STEPS}}))
    checkpoint = folder / "step.txt"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    if step == STEPS:
        print("this run is finished")
        return 0

    chosen = {key: value for key, value in values.items() if key != "trainer.threads"}
    best = {"loss": loss_of(chosen), "bits_per_byte": loss_of(chosen) / 2, "step": STEPS}
    while step < STEPS:
        time.sleep(SECONDS_OF_STEP)
        step += 1
        if step % 3 == 0 or step == STEPS or SIGNALS:
            save(folder, step, best)
            note(saved=step)
        if SIGNALS and step < STEPS:
            return 143
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
