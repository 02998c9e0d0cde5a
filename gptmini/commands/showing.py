"""What --cfg shows of a run that is resumed."""

import argparse

from gptmini.checks import UserError
from gptmini.commands.stored import run_to_resume, stored_config


def show_stored(command: str, flags: argparse.Namespace) -> None:
    """Print the configuration of the run that --cfg job resume=RUN names, as the other overrides change it.

    Raises UserError: --cfg asks for more than the run's own configuration, or the run cannot be resumed so.
    """
    from omegaconf import OmegaConf

    run = run_to_resume(command, flags.overrides)
    assert run is not None  # the caller has seen that there is a run
    if flags.cfg != "job" or flags.package:
        raise UserError(
            f"--cfg must be job, without --package, where a run is resumed, "
            f"got --cfg {flags.cfg} and resume={run}"
        )
    print(OmegaConf.to_yaml(stored_config(run, flags.overrides, flags.config_dir)), end="")
