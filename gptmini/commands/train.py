"""Train a GPT: gptmini train [TEXT ...] [KEY=VALUE ...]. The option --help lists groups and keys."""

import sys

from gptmini.commands.hydra_flags import run_hydra_command
from gptmini.configuration.compose import Composition
from gptmini.system.errors import UserError
from gptmini.system.world import this_world
from gptmini.training import Ranks

# A wrong key is reported before pydantic is imported (0.1 s), and a wrong value before torch and Lightning are imported
# (seconds). So the functions below import gptmini.configuration.stored, and gptmini.job after the checks.


def main(arguments: list[str]) -> None:
    """Train one run, or train several runs with -m. With --dry-run, only estimate one run."""
    run_hydra_command("train", arguments, run_job, estimate)


def run_job(composition: Composition) -> float | None:
    """Train as a Hydra job, and return the best loss. If a signal stopped the run, exit with the signal's code.

    Return None if this process only launched the ranks.
    """
    # If the first rank finds a mistake, the others notice it and end.
    with Ranks(this_world()) as ranks:
        if ranks.world.rank > 0:
            from gptmini.job.train import train_as_follower

            result = train_as_follower(ranks, composition.request)
        else:
            from gptmini.configuration.stored import settings_of

            settings, request = settings_of(composition)
            from gptmini.job.train import train

            result = train(ranks, settings, request)
    if result is None:
        return None
    if result.exit_code:
        sys.exit(result.exit_code)
    return None if result.best is None else result.best.loss


def estimate(composition: Composition) -> None:
    """Print the size, the memory and the time of a run without training it. Ranks other than rank 0 do nothing."""
    if this_world().rank > 0:
        return
    from gptmini.configuration.stored import settings_of

    settings, request = settings_of(composition)
    resume = settings.root.resume
    if resume is not None:
        raise UserError(
            f"--dry-run cannot estimate a resumed run, got {resume}; leave out resume= and folder="
        )
    from gptmini.job.dry_run import dry_run

    dry_run(settings, request)
