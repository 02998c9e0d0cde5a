"""The rules between trainer settings, and the check of every trainer and callback setting by name."""

import re
import subprocess
import sys
from fractions import Fraction

import lightning as L
import pytest
import yaml

import gptmini.training
from gptmini.system.errors import UserError
from gptmini.system.files import CONFIGS
from gptmini.system.world import World
from gptmini.training import TrainerSettings
from gptmini.training.trainer import check_callback
from refusals import refused_keys
from training.runs import SETTINGS

CALLBACKS = yaml.safe_load((CONFIGS / "callbacks" / "default.yaml").read_text())
ALONE = World()
SIX = World(launcher="torchrun", size=6, devices=3)  # on two machines


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_checks_every_setting_of_the_configuration(name):
    settings = {key: value for key, value in CALLBACKS[name].items() if key != "_target_"}
    callback = getattr(gptmini.training, CALLBACKS[name]["_target_"].rpartition(".")[2])
    assert check_callback(f"callbacks.{name}", callback(**settings)).state_key

    for key in settings:
        refused = refused_keys(callback, **settings | {key: object()})
        assert {found.split(".")[0] for found in refused} == {key}


@pytest.mark.parametrize(
    ("max_steps", "expected"),
    [
        (700, [200, 400, 600, 700]),  # the default run
        (1000, [200, 400, 600, 800, 1000]),
        (601, [200, 400, 600, 601]),
        (300, [75, 150, 225, 300]),
        (100, [25, 50, 75, 100]),
        (10, [2, 4, 6, 8, 10]),
        (2, [1, 2]),
    ],
)
def test_a_run_validates_four_times_by_default(max_steps, expected):
    settings = TrainerSettings(**SETTINGS | {"max_steps": max_steps, "val_every_steps": "auto"})
    due = [step for step in range(1, max_steps + 1) if settings.validation_due(step)]
    assert due == expected

    settings = TrainerSettings(**SETTINGS | {"max_steps": max_steps, "val_every_steps": 1000})
    assert settings.validation_due(max_steps)
    assert not any(map(settings.validation_due, range(1, min(max_steps, 1000))))


def test_only_a_callback_whose_state_a_checkpoint_can_hold_is_taken():
    class Keeping(L.Callback):
        def state_dict(self):
            return {"kept": Fraction(1, 2)}

    with pytest.raises(UserError, match="state of Keeping"):
        check_callback("callbacks.mine", Keeping())
    with pytest.raises(UserError, match=r"callbacks\.mine must be a lightning\.Callback"):
        check_callback("callbacks.mine", 3)


@pytest.mark.parametrize(
    ("max_time", "seconds"),
    [
        (None, None),
        (0.25, 0.25),
        (90, 90.0),
        ("90s", 90.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("2d1s", 172_801.0),
        ("1:30", 90.0),
        ("02:00:00", 7200.0),
        ("1:00:00:01", 86401.0),
    ],
)
def test_a_time_limit_is_in_seconds_with_units_or_as_a_clock_shows_it(max_time, seconds):
    assert TrainerSettings(**SETTINGS | {"max_time": max_time}).max_seconds == seconds


@pytest.mark.parametrize(
    "max_time",
    [0, "", "0s", "00:00", "1:2:3:4:5", "-1:00", "1:0x", "5m5m", "3m2h", "10m5", "m", "1.5h"],
)
def test_what_no_clock_shows_is_refused(max_time):
    refused = refused_keys(TrainerSettings, **SETTINGS | {"max_time": max_time})
    assert {key.split(".")[0] for key in refused} == {"max_time"}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((12, 8, 1), "got 12, 8 and 1; set trainer.batch_size=6 or auto"),
        ((24, 8, 2), "got 24, 8 and 2; set trainer.batch_size=6 or auto"),
        ((15, 5, 4), "got 15 and 4; use 3 devices or trainer.global_batch_size=16"),
    ],
)
def test_a_global_batch_that_devices_cannot_share_is_refused(sizes, message):
    names = ("global_batch_size", "batch_size", "devices")
    settings = SETTINGS | dict(zip(names, sizes, strict=True))
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainerSettings(**settings)


def placed(world, **settings):
    wanted = SETTINGS | {"devices": "auto", "num_nodes": "auto", "global_batch_size": 12}
    return TrainerSettings(**wanted | settings).placed(world)


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
    found = placed(world, **settings)
    assert (found.devices, found.num_nodes) == expected
    assert found.n_ranks == expected[0] * expected[1]


@pytest.mark.parametrize(
    ("settings", "world", "message"),
    [
        ({"devices": 2}, SIX, "torchrun started 6 ranks"),
        # Two ranks on this machine, three on the other.
        ({}, World(launcher="srun", size=5, devices=2), "leave out both keys"),
        ({"num_nodes": 2}, ALONE, "trainer.num_nodes above 1 requires torchrun or srun"),
        ({}, World(tasks_without_srun=4), "this Slurm job has 4 tasks"),
        ({"global_batch_size": 10}, SIX, "a multiple of the number of devices, got 10 and 6"),
    ],
)
def test_other_devices_than_were_started_are_refused(settings, world, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        placed(world, **settings)


def test_settings_are_checked_without_torch():
    command = "import sys; from gptmini.training import TrainerSettings; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", command], check=True)
