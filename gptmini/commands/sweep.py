"""Train one run for each combination of values, and find the best run: gptmini sweep [TEXT ...] [KEY=VALUES ...]."""

import importlib.util
import os
import sys

from gptmini.commands.help import show_help
from gptmini.commands.hydra_flags import parse_flags
from gptmini.commands.mistakes import one_line_errors
from gptmini.configuration.building import build_component
from gptmini.configuration.compose import compose
from gptmini.configuration.request import key_of
from gptmini.configuration.sweep_space import is_sweep_override, space_of
from gptmini.job.sweeping import train_all
from gptmini.system.errors import UserError
from gptmini.system.files import install_command
from gptmini.training import Component


def main(arguments: list[str]) -> None:
    """Train all unfinished runs of a sweep. Exit with code 0 only if all runs have finished."""
    with one_line_errors():
        options = parse_flags("sweep", arguments)
        overrides = [line for line in options.overrides if is_sweep_override(line)]
        if any(key_of(line).startswith("sweep.params") for line in overrides):
            raise UserError(
                "sweep.params works only in a file; write KEY=VALUES such as optimizer.lr=0.1,0.2"
            )
        composition = compose("sweep", overrides, options.config_dir)
        if options.help:
            show_help("sweep", composition, options.keys)
            return
        if os.name != "posix":
            raise UserError("gptmini sweep requires Linux or macOS; use gptmini train -m instead")
        if importlib.util.find_spec("optuna") is None:
            raise UserError(f"gptmini sweep requires optuna; run: {install_command('sweep')}")

        settings = build_component(Component("sweep", composition.plain()["sweep"]))
        of_train = [line for line in options.overrides if not is_sweep_override(line)]
        if not any(key_of(line) == "name" for line in of_train):
            of_train.append(f"name={settings.name}")
        space = space_of(settings.params, of_train)
        settings.sampler_of(space)  # check the sampler before the values, because this is fast
        code = train_all(space, settings, options.config_dir, n_runs=options.jobs)
    sys.exit(code)
