"""Learning rate schedules against numbers by hand and nanoGPT's formula."""

import math

import pytest

from gptmini.optim import CosineSchedule, LinearSchedule, TrapezoidSchedule

# Warm-up over 4 steps, then 8 decay steps from step 4 (peak) to step 12 (the last of 13), down to a fifth.
SETTINGS = {"warmup_steps": 4, "final_fraction": 0.2}
WARMUP = [(0, 0.2), (1, 0.4), (2, 0.6), (3, 0.8), (4, 1.0)]
END = [(12, 0.2), (13, 0.2), (10**12, 0.2)]
ROOT = math.sqrt(0.5)
# A quarter, a half and three quarters of the way through the decay.
COSINE = [(6, 0.2 + 0.4 * (1 + ROOT)), (8, 0.6), (10, 0.2 + 0.4 * (1 - ROOT))]
LINEAR = [(5, 0.9), (6, 0.8), (8, 0.6), (10, 0.4), (11, 0.3)]
# The last 8 of 21 steps decay, from step 12 (peak) to step 20 (the last).
TRAPEZOID = [(5, 1.0), (12, 1.0), (13, 0.9), (16, 0.6), (19, 0.3), (20, 0.2), (10**12, 0.2)]


@pytest.mark.parametrize(
    ("schedule", "max_steps", "points"),
    [
        (CosineSchedule(**SETTINGS), 13, WARMUP + COSINE + END),
        (CosineSchedule(**SETTINGS), 4, WARMUP[:3]),  # the run ends during warm-up
        (LinearSchedule(**SETTINGS), 13, WARMUP + LINEAR + END),
        (TrapezoidSchedule(**SETTINGS, decay_fraction=8 / 21), 21, WARMUP + TRAPEZOID),
    ],
)
def test_values_by_hand(schedule, max_steps, points):
    for step, expected in points:
        assert schedule(step, max_steps=max_steps) == pytest.approx(expected, rel=1e-12), step


@pytest.mark.parametrize(("max_steps", "warmup_steps"), [(2001, 100), (50, 0), (29, 11)])
@pytest.mark.parametrize("min_lr", [0.0, 1e-4])
def test_cosine_equals_nanogpt(max_steps, warmup_steps, min_lr):
    lr = 1e-3
    lr_decay_iters = max_steps - 1  # index of the last step, which reaches min_lr

    def get_lr(it):  # train.py, "learning rate decay scheduler (cosine with warmup)"
        if it < warmup_steps:
            return lr * (it + 1) / (warmup_steps + 1)
        if it > lr_decay_iters:
            return min_lr
        decay_ratio = (it - warmup_steps) / (lr_decay_iters - warmup_steps)
        coeff = 0.5 * (1.0 + math.cos(math.pi * decay_ratio))

        return min_lr + coeff * (lr - min_lr)

    schedule = CosineSchedule(warmup_steps=warmup_steps, final_fraction=min_lr / lr)
    for step in range(max_steps + 9):
        rate = lr * schedule(step, max_steps=max_steps)
        assert rate == pytest.approx(get_lr(step), rel=1e-12, abs=1e-18)
