"""Decide for trainer.compile=auto whether the steps of a run take so long that compiling them saves time."""

import math

from gptmini.console.numbers import duration
from gptmini.system.errors import ran_out_of_memory
from gptmini.training.budget.timing import measure_module
from gptmini.training.module import GPTModule

# On an H200 with PyTorch 2.11, a model of 12 blocks of width 768 compiled in 18 to 23 s.
SECONDS_TO_COMPILE = 20.0
# How many times as fast a compiled step is. On the H200, compilation made the entire default run (700 steps of 18 ms
# without it) 14.5 s slower, and shakespeare_char_short (500 steps of 27 ms) 10.4 s. With 1.5, compiling took 19 s and
# 15 s there. nanoGPT's README reports 250 ms per iteration without it and 135 ms with it, which is 1.85 times as fast.
SPEEDUP = 1.5
# Compilation saves time if the steps take t seconds without it and t > SECONDS_TO_COMPILE + t / SPEEDUP.
BREAK_EVEN = SECONDS_TO_COMPILE * SPEEDUP / (SPEEDUP - 1)
SECONDS = 0.5  # how long to measure; about 20 steps of the runs above


def should_compile(trial: GPTModule, n_steps: int) -> tuple[bool, str]:
    """Return whether to compile the remaining n_steps steps of a run, and the reason.

    The trial is a module like that of the run, but not compiled. It is trained; discard it afterwards. A run that
    trainer.max_time ends does more steps in its time with compilation, from the same BREAK_EVEN on.
    """
    try:
        seconds_a_step, _ = measure_module(trial, seconds=SECONDS)
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        # Compiled code stores fewer activations, and FSDP2 shards the model.
        return True, "a step does not fit into memory without compilation"

    seconds = min(n_steps * seconds_a_step, trial.settings.max_seconds or math.inf)
    said = (
        f"the steps take {duration(seconds)} without compilation; "
        f"compilation saves time from {duration(BREAK_EVEN)} on"
    )
    return seconds > BREAK_EVEN, said
