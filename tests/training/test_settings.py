"""Settings of the trainer that are out of range are refused by name."""

import pytest


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
            "must be a multiple of trainer.batch_size times trainer.devices, got 12, 8 and 1; "
            "trainer.batch_size=6 fits, and auto finds one",
        ),
        (
            {"global_batch_size": 24, "batch_size": 8, "devices": 2},
            "got 24, 8 and 2; trainer.batch_size=6 fits",
        ),
        (
            {"global_batch_size": 15, "batch_size": 5, "devices": 4},
            "must be a multiple of trainer.devices, got 15 and 4; "
            "trainer.devices=3 or trainer.global_batch_size=16 fits",
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
