"""What a run came to: every tensor at its end, and every line that it has logged."""

from pathlib import Path

import torch

from gptmini.checkpoint.file import read_checkpoint
from gptmini.runs import read_lines
from gptmini.runs.metrics import BEGINNING, tags_of

# Prefixes of tags that differ: speed and memory from run to run, and what every start writes again.
DIFFERING = ("work/", BEGINNING)


def outcome(folder: Path) -> dict:
    """Return what the only run below a folder ended with, by name."""
    # The folder of links to the newest run is left out.
    (path,) = (path for path in folder.glob("runs/*/*/config.yaml") if "latest" not in path.parts)
    run = path.parent

    last = read_checkpoint(run / "checkpoints" / "last.ckpt")
    values = {"steps": last["global_step"]}
    for name, tensor in last["state_dict"].items():
        values[f"weights {name}"] = tensor
    for name, moments in last["optimizer_states"][0]["state"].items():
        for moment, tensor in moments.items():
            values[f"optimizer {name} {moment}"] = tensor

    for line in read_lines(run):
        for tag, value in tags_of(line).items():
            if not tag.startswith(DIFFERING):
                values.setdefault(f"curve {tag}", []).append((line["step"], value))
    return values


def differing_bits(one: dict, other: dict) -> int:
    """Count the bits in which the tensors of two outcomes differ.

    A value that one outcome lacks, and a value that is no tensor and differs, counts as one bit and is printed.
    """
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
