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
            "must be a multiple of trainer.batch_size times devices, got 12, 8",
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
