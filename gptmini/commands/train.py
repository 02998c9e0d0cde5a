"""Train a GPT: gptmini train [KEY=VALUE ...]; --help lists groups and keys."""

import sys
import time

from gptmini.commands.hydra_flags import run_composed
from gptmini.configuration.compose import Composed
from gptmini.world import this_world

# What a job needs is imported by the job: a wrong key is told before pydantic, torch and Lightning are imported.


def main(arguments: list[str]) -> None:
    """Train a run, or with -m several."""
    run_composed("train", arguments, run_job, show_configuration)


def run_job(composed: Composed) -> float | None:
    """Train as a job of Hydra, and exit as a signal that has stopped the run asks; return the best loss.

    The best loss of a run whose ranks were started here is not known in this process, and None.
    """
    from gptmini.job.train import follow, train

    result = follow() if this_world().rank > 0 else train(composed)
    if result is None:
        return None
    if result.exit_code:
        sys.exit(result.exit_code)
    return None if result.best is None else result.best.loss


def show_configuration(composed: Composed) -> None:
    """Print the configuration that a command line amounts to; with resume= or folder=, that of the run.

    With budget= the text is prepared, so that what is chosen for it is shown.
    """
    from gptmini.configuration.building import as_yaml, build_settings
    from gptmini.configuration.stored import resolved

    began = time.monotonic()
    plain, typed = resolved(composed)
    changes = {}
    trains = "verify" not in plain  # a key of gptmini prepare
    if trains and plain["budget"] is not None and plain["resume"] is None:
        from gptmini.data import Watcher
        from gptmini.job.budget import Dial
        from gptmini.job.train import prepare_process

        settings = build_settings(plain)
        prepare_process(settings)
        changes = Dial(settings, typed, Watcher(), began=began).choose().changes
    print(as_yaml(plain, changes), end="")
