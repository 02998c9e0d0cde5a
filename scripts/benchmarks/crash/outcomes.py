"""What a run came to: its newest step while it trains, and every tensor and point of its curves at its end."""

from pathlib import Path

INTERVAL = 20  # steps between checkpoints

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

# A callback that writes the newest step, and which process has done it, to a file: a process that is killed cannot tell
# its step itself. gptmini finds the class in the folder where the command is typed.
COUNTER = """
import os

import lightning as L


class Counter(L.Callback):
    def __init__(self):
        self.file = os.open("counter", os.O_WRONLY | os.O_CREAT)

    def on_train_batch_end(self, trainer, module, *batch):
        step = trainer.global_step.to_bytes(8, "little")
        os.pwrite(self.file, step + os.getpid().to_bytes(8, "little"), 0)
"""


def count_steps(folder: Path) -> str:
    """Write the callback into a folder, and return the override by which a run that is started there counts."""
    (folder / "counting.py").write_text(COUNTER)
    return "++callbacks.counter._target_=counting.Counter"


def reached(folder: Path) -> int:
    """Return the newest step that the training process of a folder has finished."""
    return _counter(folder)[0]


def newest_trainer(folder: Path) -> int:
    """Return the id of the process that has finished the newest step in a folder; 0 if none has."""
    return _counter(folder)[1]


def _counter(folder: Path) -> tuple[int, int]:
    """The newest step and its process, as COUNTER has written them."""
    path = folder / "counter"
    content = path.read_bytes() if path.exists() else b""
    return int.from_bytes(content[:8], "little"), int.from_bytes(content[8:], "little")


def outcome(folder: Path) -> dict:
    """Return what the run below a folder ended with: every tensor, and every point of its curves but the speed."""
    import logging

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from gptmini.checkpoint.file import read_checkpoint

    runs = []
    for path in folder.glob("runs/*/*/config.yaml"):
        if path.parent.parent.name != "latest":
            runs.append(path.parent)
    (run,) = runs

    last = read_checkpoint(run / "checkpoints" / "last.ckpt")
    values = {"steps": last["global_step"]}
    for name, tensor in last["state_dict"].items():
        values[f"weights {name}"] = tensor
    for name, moments in last["optimizer_states"][0]["state"].items():
        for moment, tensor in moments.items():
            values[f"optimizer {name} {moment}"] = tensor

    # TensorBoard would warn of every point that a resumed run wrote again.
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    events = EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    for tag in events.Tags()["scalars"]:
        if not tag.startswith("work/"):  # time and memory differ from run to run
            values[tag] = [(point.step, point.value) for point in events.Scalars(tag)]
    samples = events.Tensors("samples/text_summary")
    values["samples"] = [(text.step, text.tensor_proto.string_val[0]) for text in samples]
    return values


def differing_bits(one: dict, other: dict) -> int:
    """Count the bits in which the tensors of two outcomes differ.

    A value that one outcome lacks, and a value that is no tensor and differs, counts as one bit and is printed.
    """
    import torch

    bits = 0
    for name in one.keys() | other.keys():
        a = one.get(name)
        b = other.get(name)
        are_tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        if are_tensors and a.shape == b.shape:
            x = a.contiguous().flatten().view(torch.uint8)  # (bytes of a,)
            y = b.contiguous().flatten().view(torch.uint8)  # (bytes of b,)
            bits += sum(int(byte).bit_count() for byte in (x ^ y)[x != y])
        elif a != b:
            bits += 1
            print(f"differs: {name}\n  {a}\n  {b}")
    return bits
