"""Read a run folder, and compare two runs."""

import json

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gptmini.checkpoint.file import read_checkpoint
from run_folders import last


def curves(folder):
    """Scalars except time and memory, texts and images as [(step, value), ...] by tag, from TensorBoard's reader."""
    everything = {"scalars": 0, "tensors": 0, "images": 0}
    read = EventAccumulator(str(folder), size_guidance=everything).Reload()
    tags = read.Tags()

    points = {}
    for tag in tags["scalars"]:
        if not tag.startswith("work/"):
            points[tag] = [(event.step, event.value) for event in read.Scalars(tag)]
    for tag in tags["tensors"]:
        points[tag] = [
            (event.step, list(event.tensor_proto.string_val)) for event in read.Tensors(tag)
        ]
    for tag in tags["images"]:
        points[tag] = [(event.step, event.encoded_image_string) for event in read.Images(tag)]
    return points


def rows(folder):
    """Values in metrics.jsonl except time and memory, as [(step, value), ...] by tag, in TensorBoard's float32.

    A picture is the content of its file.
    """
    points = {}
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        step = line.pop("step")
        del line["time"]
        for tag, value in line.items():
            if isinstance(value, int | float):
                value = float(np.float32(value))
            elif isinstance(value, dict):
                value = (folder / "pictures" / value["picture"]).read_bytes()
            if not tag.startswith("work/"):
                points.setdefault(tag, []).append((step, value))
    return points


def steps(folder, tag):
    return [step for step, _ in curves(folder)[tag]]


def without_validation(points, step):
    """Return the points without the points of a validation after this step."""
    return {
        tag: [
            point for point in values if point[0] != step or tag.startswith(("train/", "weights/"))
        ]
        for tag, values in points.items()
    }


def assert_same(folder, other, also_validated=None):
    """Assert equal bits of weights, optimizer state and best; and equal curves, samples and configuration.

    The first run may also have a validation after the step also_validated.
    """
    for name in ("last", "best"):
        one = last(folder, name)
        two = last(other, name)

        assert one["global_step"] == two["global_step"]
        assert one["callbacks"] == two["callbacks"]
        assert one["state_dict"].keys() == two["state_dict"].keys()
        for key, weight in one["state_dict"].items():
            assert torch.equal(weight, two["state_dict"][key]), key
        for i, state in one["optimizer_states"][0]["state"].items():
            moments = two["optimizer_states"][0]["state"][i]
            for key, value in state.items():
                assert torch.equal(value, moments[key]), (i, key)

    drawn = curves(folder)
    logged = rows(folder)
    if also_validated is not None:
        assert also_validated in [step for step, _ in drawn["val/loss"]]
    assert without_validation(drawn, also_validated) == without_validation(
        curves(other), also_validated
    )
    assert without_validation(logged, also_validated) == without_validation(
        rows(other), also_validated
    )
    for tag in ("train/loss", "val/loss", "val/gap", "weights/grad_norm"):
        assert logged[tag] == drawn[tag]
    assert [step for step, _ in logged["samples"]] == [step for step, _ in logged["val/loss"]]
    assert steps(folder, "train/lr/matrices") == [1, 2, 3, 4, 5, 6, 7]
    assert steps(folder, "setup/config/text_summary") == [0]


def snapshot(folder):
    """Name and bytes of every file except the log and the lock."""
    content = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in ("train.log", ".lock"):
            content[path.relative_to(folder)] = path.read_bytes()
    return content


def assert_whole(folder):
    """Assert that every checkpoint can be read, and that no partial file is left."""
    for path in folder.glob("checkpoints/*.ckpt"):
        read_checkpoint(path)
    assert list(folder.rglob("*.tmp")) == []
