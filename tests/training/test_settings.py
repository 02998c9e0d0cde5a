"""Settings of the trainer that are out of range are refused by name, and auto takes what was started."""

import math
import re
import subprocess
import sys

import pytest
from pydantic import ValidationError

from gptmini.training import TrainerSettings
from gptmini.world import World
from training.runs import SETTINGS

REFUSED = {
    "max_steps": [0, 2.5, True],
    "max_time": [0, -5.0, math.inf, math.nan, True, "", "10", "1:2:3:4:5", "-1:00", "1:0x", []],
    "global_batch_size": [0, 10**19],
    "batch_size": [0, "all"],
    "gradient_clip": [0, -1, "1"],
    "val_tokens": [0, "all"],
    "device": ["gpu", None],
    "devices": [0, "two"],
    "strategy": ["fsdp"],
    "checkpoint_activations": [1],
    "timeout": [0, 10**7],
    "precision": ["fp16"],
    "compile": [1, "yes"],
    "threads": [0, 10**6],
    "max_stepz": [3],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_a_wrong_value_is_refused_by_name(name, value):
    with pytest.raises(ValidationError) as error:
        TrainerSettings(**SETTINGS | {name: value})
    assert {found["loc"][0] for found in error.value.errors()} == {name}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((12, 8, 1), "got 12, 8 and 1; trainer.batch_size=6 fits, and auto finds one"),
        ((24, 8, 2), "got 24, 8 and 2; trainer.batch_size=6 fits"),
        ((15, 5, 4), "got 15 and 4; 3 devices or trainer.global_batch_size=16 would fit"),
        ((9, "auto", 2), "must be a multiple of the number of devices, got 9 and 2"),
    ],
)
def test_a_global_batch_that_devices_cannot_share_is_refused(sizes, message):
    names = ("global_batch_size", "batch_size", "devices")
    settings = SETTINGS | dict(zip(names, sizes, strict=True))
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainerSettings(**settings)


@pytest.mark.parametrize(
    ("max_time", "seconds"),
    [
        (None, None),
        (90, 90.0),
        (0.25, 0.25),
        ("1:30", 90.0),
        ("02:00:00", 7200.0),
        ("1:00:00:01", 86401.0),
    ],
)
def test_a_time_limit_is_in_seconds_or_as_a_clock_shows_it(max_time, seconds):
    assert TrainerSettings(**SETTINGS | {"max_time": max_time}).max_seconds == seconds


def test_settings_are_checked_without_torch():
    command = "import sys; from gptmini.training import TrainerSettings; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", command], check=True)


ALONE = World()
SIX = World(launcher="torchrun", size=6, devices=3)


@pytest.mark.parametrize(
    ("settings", "world", "expected"),
    [
        ({}, ALONE, (1, 1)),
        ({"devices": 2}, ALONE, (2, 1)),
        ({}, SIX, (3, 2)),
        ({"devices": 3}, SIX, (3, 2)),
        ({"devices": 2}, World(tasks_without_srun=4), (2, 1)),
    ],
)
def test_auto_takes_the_devices_that_were_started(settings, world, expected):
    wanted = SETTINGS | {"devices": "auto", "num_nodes": "auto", "global_batch_size": 12}
    placed = TrainerSettings(**wanted | settings).placed(world)
    assert (placed.devices, placed.num_nodes) == expected
    assert placed.n_ranks == expected[0] * expected[1]


@pytest.mark.parametrize(
    ("settings", "world", "message"),
    [
        ({"devices": 2}, SIX, "torchrun has started 6 ranks, 3 of them on this machine, got"),
        ({"num_nodes": 1}, SIX, "got trainer.devices=3 and trainer.num_nodes=1; leave both out"),
        # Two ranks on this machine, and three on the other.
        ({}, World(launcher="srun", size=5, devices=2), "start equally many ranks on every"),
        ({"num_nodes": 2}, ALONE, "several machines need torchrun or srun"),
        (
            {},
            World(tasks_without_srun=4),
            "this SLURM job has 4 tasks, and gptmini was called once",
        ),
        ({"global_batch_size": 10}, SIX, "a multiple of the number of devices, got 10 and 6"),
    ],
)
def test_other_devices_than_were_started_are_refused(settings, world, message):
    wanted = SETTINGS | {"devices": "auto", "num_nodes": "auto", "global_batch_size": 12}
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainerSettings(**wanted | settings).placed(world)
