"""Train one run for each combination of values, and find the best run: gptmini sweep [TEXT ...] [KEY=VALUES ...]."""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from gptmini.commands.help import show_help
from gptmini.commands.hydra_flags import refuse
from gptmini.commands.mistakes import Parser, one_line_errors, refuse_options_as_keys
from gptmini.configuration.building import sweep_settings
from gptmini.configuration.compose import compose
from gptmini.configuration.overrides import key_of
from gptmini.configuration.sweep_space import is_sweep_override, space_of
from gptmini.configuration.texts import texts_as_overrides, without_keys
from gptmini.files import install_command
from gptmini.job.sweeping import detach_from_launcher, train_all
from gptmini.user_error import UserError


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line. The field 'overrides' contains all words that are not options."""
    parser = Parser(prog="gptmini sweep", add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--config-dir")
    parser.add_argument("--help", "-h", action="store_true")
    parser.error = lambda message: refuse(parser, message, arguments, with_sweep=True)
    options = parser.parse_intermixed_args(arguments)
    refuse_options_as_keys(parser, options.overrides)

    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    if options.config_dir is not None and not Path(options.config_dir).is_dir():
        parser.error(f"--config-dir must be an existing folder, got {options.config_dir}")
    return options


def main(arguments: list[str]) -> None:
    """Train all unfinished runs of a sweep. Exit with code 0 only if all runs have finished."""
    tasks = detach_from_launcher()
    with one_line_errors():
        options = parse(arguments)
        keys, words = without_keys(options.overrides) if options.help else ([], options.overrides)
        overrides = texts_as_overrides(words)
        own = [line for line in overrides if is_sweep_override(line)]
        for line in own:
            if line.lstrip("+~").startswith("sweep.params"):
                raise UserError(
                    f"{line} works only in a file; to vary a key on the command line, write KEY=VALUES such as "
                    "optimizer.lr=0.1,0.2"
                )
        composed = compose("sweep", own, options.config_dir)
        if options.help:
            show_help("sweep", composed, keys)
            return
        if os.name != "posix":
            raise UserError("gptmini sweep requires Linux or macOS; use gptmini train -m instead")
        if importlib.util.find_spec("optuna") is None:
            raise UserError(f"gptmini sweep requires optuna; run: {install_command('sweep')}")

        settings = sweep_settings(composed)
        typed = [line for line in overrides if not is_sweep_override(line)]
        if not any(key_of(line) == "name" for line in typed):
            typed.append(f"name={settings.name}")
        space = space_of(settings.params, typed)
        settings.sampler_of(space)  # check the sampler before the values, because this is fast
        code = train_all(
            space,
            settings,
            options.config_dir,
            tasks=tasks,
            n_runs=options.jobs,
        )
    sys.exit(code)
