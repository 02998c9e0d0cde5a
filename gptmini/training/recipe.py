"""The values of the word auto: vocabulary, steps, dropout, weight decay and average for a text that is read many times.

A model that reads a small text again and again memorises it. A small vocabulary keeps it from that, because a row of
a rare token can only memorise where the token stands. So do weight decay and dropout. An average of the weights
helps, because it forgets what single steps have memorised. A text that is read once needs none of them.
docs/results.md has the measurements behind the numbers.
"""

import math
from collections.abc import Mapping
from typing import Any

VOCABULARIES = (512, 1000, 2000, 4000, 8000, 16_000, 32_000)
MOST_TOKENS = 4000  # largest vocabulary of auto
BYTES_OF_PAIRS = 0.36  # bytes per byte-pair token, divided by ln(vocabulary size)

# A run without a number of steps takes at most this many passes and steps, and at least so many steps.
ENOUGH_PASSES = 15
MOST_STEPS = 700
LEAST_STEPS = 50
# A small model cannot memorise a large text. So for each weight in its blocks per byte of text, only this many passes
# after the first count, except for the average.
PASSES_A_WEIGHT = 8.5
# Weight decay for each pass after the first, and its maximum.
DECAY_A_PASS = 0.1
MOST_DECAY = 1.0
# Dropout for each pass after FREE_PASSES, and its maximum.
FREE_PASSES = 2.5
DROPOUT_A_PASS = 0.012
MOST_DROPOUT = 0.2
# An average helps from so many passes on. It covers this fraction of the steps.
AVERAGED_PASSES = 2
EMA_SHARE = 0.1
# With an average, the learning rate may fall from the first step on, but it need not fall to 0. A model memorises more
# at a low rate. So the rate of the last step, as a fraction of the peak, grows with each pass, up to a maximum. From
# MANY_PASSES on, the rate also stays at its peak for a while.
FINAL_A_PASS = 0.05
MOST_FINAL = 0.3
MANY_PASSES = 8
DECAY_FRACTION = 0.7

# Values of auto for a text that is read at most once, by the class that has the setting.
ONE_PASS: Mapping[str, Mapping[str, int | float | None]] = {
    "gptmini.tokenizer.BytePairSettings": {"vocab_size": MOST_TOKENS},
    "gptmini.model.ModelSettings": {"dropout": 0.0},
    "gptmini.optim.MuonSettings": {"weight_decay": 0.0},
    "gptmini.optim.TrapezoidSchedule": {"final_fraction": 0.0, "decay_fraction": DECAY_FRACTION},
    "gptmini.training.TrainerSettings": {"max_steps": MOST_STEPS, "ema_steps": None},
}


def one_pass_values(values: Mapping[str, Any]) -> dict[str, int | float | None]:
    """Return the values for one pass of those settings of a component that are auto."""
    numbers = ONE_PASS.get(values.get("_target_", ""), {})
    return {name: number for name, number in numbers.items() if values.get(name) == "auto"}


def suitable_vocabulary(n_bytes: float, *, most: float = MOST_TOKENS) -> int:
    """Return the number of byte-pair tokens that suits a text: 1,000 for 200 KB, 2,000 for 1 MB, 4,000 from 2 MB on.

    The number is at most about `most`. With more tokens, each is rarer, and the model memorises where it occurs. With
    fewer, the text has more tokens.
    """
    suitable = min(most, 1020 * (n_bytes / 200e3) ** 0.45)
    return min(VOCABULARIES, key=lambda n_vocab: abs(math.log(n_vocab / suitable)))


def steps_for(n_bytes: float, tokens_a_step: int) -> int:
    """Return the number of steps for a text of n_bytes."""
    bytes_a_step = tokens_a_step * BYTES_OF_PAIRS * math.log(suitable_vocabulary(n_bytes))
    enough = max(LEAST_STEPS, ENOUGH_PASSES * n_bytes / bytes_a_step)
    return round(min(MOST_STEPS, enough))


def recipe_for(
    passes: float, weights_per_byte: float, n_steps: int, *, averages: bool = True
) -> dict[str, float | None]:
    """Return the other values, by key, for a run of n_steps that passes over its text so often.

    The blocks of the model have weights_per_byte for each byte of the text. `averages` is false if the user has turned
    the average off.
    """
    is_averaged = averages and passes >= AVERAGED_PASSES
    passes = min(passes, 1 + PASSES_A_WEIGHT * weights_per_byte)
    weight_decay = DECAY_A_PASS * max(0.0, passes - 1)
    dropout = DROPOUT_A_PASS * max(0.0, passes - FREE_PASSES)
    recipe: dict[str, float | None] = {
        "model.dropout": round(min(MOST_DROPOUT, dropout), 2),
        "optimizer.weight_decay": round(min(MOST_DECAY, weight_decay), 2),
        "trainer.ema_steps": None,
        "schedule.final_fraction": 0.0,
        "schedule.decay_fraction": DECAY_FRACTION,
    }

    if is_averaged:
        recipe["trainer.ema_steps"] = max(1, round(EMA_SHARE * n_steps))
        recipe["schedule.final_fraction"] = round(min(MOST_FINAL, FINAL_A_PASS * passes), 2)
        if passes < MANY_PASSES:
            recipe["schedule.decay_fraction"] = 1.0
    return recipe
