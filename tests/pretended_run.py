"""A program that replaces gptmini train folder=... in tests: it writes a run's files in a second, without torch.

It starts in its folder or resumes from the latest checkpoint there. A finished run prints that it is finished. The loss
is a function of the overrides. The program exits with 1 if the folder is locked, and with 2 if the learning rate is
above 1. At SIGTERM, it saves and exits with 143. Next to the folder, it records each start and each saved step.
"""

import json
import os
import signal
import sys
import time
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


def write(path, text):
    """Write a file atomically."""
    path.with_name("new").write_text(text)
    path.with_name("new").replace(path)


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
    )
    time.sleep(SECONDS_OF_STEP * 5)  # a real run imports libraries before it locks its folder
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0.5)
    except Timeout:
        note(collision=os.getpid())
        print(f"error: another process is training the run {folder}; stop that process first")
        return 1

    if float(values.get("optimizer.lr", "0")) > 1:
        print("some output\nerror: 10 steps in a row, to step 10, had a loss that is not finite")
        return 2

    def end(state, exit_code):
        write(folder / "state", json.dumps({"state": state, "step": step, "exit_code": exit_code}))
        return exit_code

    write(
        folder / "config.yaml",
        f"version: 0.3.0\ntyped: {json.dumps(overrides)}\ntrainer: {{max_steps: {STEPS}}}\n",
    )
    checkpoint = folder / "step.txt"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    if step == STEPS:
        print("this run is finished")  # like a real run, it does not write its state again
        return 0

    chosen = {key: value for key, value in values.items() if key != "trainer.threads"}
    loss = loss_of(chosen)
    end("running", None)
    while step < STEPS:
        time.sleep(SECONDS_OF_STEP)
        step += 1
        if step % 3 == 0 or step == STEPS or SIGNALS:
            line = {"step": step, "val/loss": loss, "val/bits_per_byte": loss / 2}
            write(folder / "metrics.jsonl", json.dumps(line) + "\n")
            write(checkpoint, str(step))
            note(saved=step)
        if SIGNALS and step < STEPS:
            return end("stopped", 143)
    return end("done", 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
