"""Train a GPT: gptmini train [KEY=VALUE ...]; --help lists groups and keys."""

import sys
from typing import TYPE_CHECKING

from gptmini.configuration.overrides import Typed
from gptmini.job.train import follow, train
from gptmini.world import this_world

# A wrong key or value is told before torch and Lightning are imported, which takes seconds.
if TYPE_CHECKING:
    from omegaconf import DictConfig


def run_job(config: "DictConfig", typed: Typed) -> float | None:
    """Train as a job of Hydra, and exit as a signal that has stopped the run asks; return the best loss.

    The best loss of a run whose ranks were started here is not known in this process, and None.
    """
    result = follow() if this_world().rank > 0 else train(config, typed)
    if result is None:
        return None
    if result.exit_code:
        sys.exit(result.exit_code)
    return None if result.best is None else result.best.loss
