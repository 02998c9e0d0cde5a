"""Settings of the trainer that are out of range are refused by name."""

import re

import pytest

from gptmini.launch import Launch
from gptmini.training import TrainerSettings
from training.runs import SETTINGS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_steps": 0}, "trainer.max_steps must be a whole number of at least 1, got 0"),
        (
            {"global_batch_size": 10**19},
            f"trainer.global_batch_size must be a whole number from 1 to 2147483648, got {10**19}",
        ),
        ({"max_steps": 2.5}, "trainer.max_steps must be a whole number of at least 1, got 2.5"),
        (
            {"gradient_clip": -1},
            "gradient_clip must be a finite number above 0, or null for no limit, got -1",
        ),
        (
            {"global_batch_size": 12, "batch_size": 8},
            "must be a multiple of trainer.batch_size times the number of devices, got 12, 8 and 1; "
            "trainer.batch_size=6 fits, and auto finds one",
        ),
        (
            {"global_batch_size": 24, "batch_size": 8, "devices": 2},
            "got 24, 8 and 2; trainer.batch_size=6 fits",
        ),
        (
            {"global_batch_size": 15, "batch_size": 5, "devices": 4},
            "must be a multiple of the number of devices, got 15 and 4; "
            "3 devices or trainer.global_batch_size=16 would fit",
        ),
        (
            {"val_tokens": "all"},
            "val_tokens must be a whole number of at least 1, or null for all, got 'all'",
        ),
    ],
)
def test_settings_out_of_range_are_refused(train, change, message):
    with pytest.raises(ValueError, match=message):
        train(**change)


ALONE = Launch()
SIX = Launch(by="torchrun", devices=3, nodes=2)


@pytest.mark.parametrize(
    ("settings", "launch", "expected"),
    [
        ({}, ALONE, (1, 1)),
        ({"devices": 2}, ALONE, (2, 1)),
        ({}, SIX, (3, 2)),
        ({"devices": 3}, SIX, (3, 2)),
        ({"devices": 2}, Launch(tasks_without_srun=4), (2, 1)),
    ],
)
def test_auto_takes_the_devices_that_were_started(settings, launch, expected):
    wanted = SETTINGS | {"devices": "auto", "num_nodes": "auto", "global_batch_size": 12}
    placed = TrainerSettings(**wanted | settings).placed(launch)
    assert (placed.devices, placed.num_nodes) == expected
    assert placed.n_ranks == expected[0] * expected[1]


@pytest.mark.parametrize(
    ("settings", "launch", "message"),
    [
        (
            {"devices": 2},
            SIX,
            "trainer.devices must be 3, as torchrun has started it, or auto, got 2",
        ),
        ({"num_nodes": 1}, SIX, "trainer.num_nodes must be 2, as torchrun has started it"),
        ({"num_nodes": 2}, ALONE, "trainer.num_nodes must be 1 for a run that was started alone"),
        (
            {},
            Launch(tasks_without_srun=4),
            "this SLURM job has 4 tasks, and gptmini was called once",
        ),
        ({"global_batch_size": 10}, SIX, "a multiple of the number of devices, got 10 and 6"),
    ],
)
def test_other_devices_than_were_started_are_refused(settings, launch, message):
    wanted = SETTINGS | {"devices": "auto", "num_nodes": "auto", "global_batch_size": 12}
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainerSettings(**wanted | settings).placed(launch)
