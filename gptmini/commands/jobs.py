"""The jobs of a command line: flags are read, and every job is composed and checked before the first starts."""

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini import __version__
from gptmini.commands.configuration import (
    as_typed,
    composer,
    parse_overrides,
    sweep_described,
    without_sweeps,
)
from gptmini.commands.errors import refuse
from gptmini.commands.initial import take_from_source
from gptmini.commands.keys import check_overrides
from gptmini.commands.own_files import check_own_files
from gptmini.commands.quoting import expand_home, in_hydras_grammar
from gptmini.commands.stored import run_to_resume, stored_config
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


@dataclass(frozen=True)
class Checked:
    """What the check of a command line has found before Hydra composes the jobs."""

    varied: tuple[str, ...] = ()  # keys that a sweep varies
    # Overrides of every job of a sweep over a grid of values, in their order. Other sweepers choose jobs as they go.
    jobs: tuple[list[str], ...] = ()
    # Folder of all runs; None for a single job, and for a command without runs.
    runs_dir: str | None = None

    # The check that remains for a single job once it is composed. None if nothing remains to be checked.
    check_composed: "Callable[[DictConfig], None] | None" = None


def parse_flags(arguments: list[str]) -> argparse.Namespace:
    """Read Hydra's own flags and the overrides; a mistake in them is told in one line.

    Returns the flags: typed holds the overrides as they were typed, overrides holds them in Hydra's grammar.
    Raises UserError: a flag that would replace gptmini's configurations, or flags that do not go together.
    """
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.error = refuse
    for action in parser._actions:
        if isinstance(action, argparse._VersionAction):
            action.version = __version__  # gptmini's instead of Hydra's
    flags = parser.parse_intermixed_args(arguments)

    if flags.experimental_rerun is not None:
        raise UserError("--experimental-rerun would load pickled code; resume= goes on with a run")
    if flags.config_path is not None or flags.config_name is not None:
        raise UserError(
            "--config-path and --config-name would replace gptmini's; "
            "--config-dir adds a folder to them"
        )
    _check_modes(flags)
    if flags.config_dir is not None and not Path(flags.config_dir).is_dir():
        raise UserError(f"--config-dir must be a folder, got {flags.config_dir}")

    flags.typed = flags.overrides
    flags.overrides = in_hydras_grammar(flags.typed, multirun=flags.multirun)
    return flags


def check_jobs(command: str, flags: argparse.Namespace, check: Callable | None) -> Checked:
    """Check the keys of a command line; for a sweep, compose every job and check its values too.

    Raises UserError: a key or a value of one of the jobs does not fit.
    """
    if not flags.multirun:
        run = run_to_resume(command, flags.overrides)
        if run is not None:
            stored_config(run, flags.overrides, flags.config_dir)
            return Checked()
        check_own_files(command, without_sweeps(flags.overrides), flags.config_dir)
        return Checked(check_composed=check_overrides(command, flags.overrides, flags.config_dir))

    # Of the files that several jobs use, a mistake is told before the files are asked for a sweep.
    check_own_files(command, without_sweeps(flags.overrides), flags.config_dir)
    described = sweep_described(command, flags.overrides, flags.config_dir)
    swept = [*described.overrides, *flags.overrides]
    jobs = _expand(swept, flags.config_dir)
    if not jobs:
        raise UserError("the sweep has no job: a glob or a range in it stands for no value")
    for overrides in jobs:
        config = compose_checked(command, overrides, flags.config_dir)
        if check is not None:
            check(config)
    return Checked(
        varied=_varied(swept),
        jobs=tuple(jobs) if described.is_grid else (),
        runs_dir=described.runs_dir,
    )


def _varied(overrides: list[str]) -> tuple[str, ...]:
    """The keys that overrides sweep over, each once, in their order."""
    parsed = parse_overrides(overrides)
    keys = [override.key_or_group for override in parsed if override.is_sweep_override()]
    return tuple(dict.fromkeys(keys))


def compose_checked(
    command: str, overrides: Sequence[str], config_dir: str | None = None
) -> "DictConfig":
    """Compose a configuration from overrides, or read the configuration of the run that they resume.

    Args:
        command: train or prepare, which is also the name of the root configuration.
        overrides: KEY=VALUE or GROUP=NAME each, as a user types them or in Hydra's grammar.
        config_dir: a folder of the user's own that adds options to the groups.

    Raises UserError: a key that the chosen groups do not define, or a value that must be given and is not.
    """
    overrides = in_hydras_grammar(overrides)
    run = run_to_resume(command, overrides)
    if run is not None:
        return stored_config(run, overrides, config_dir)

    config = composed(command, overrides, config_dir)
    expand_home(config)
    take_from_source(command, config, overrides, config_dir)
    return config


def composed(command: str, overrides: Sequence[str], config_dir: str | None = None) -> "DictConfig":
    """Compose a configuration from overrides in Hydra's grammar as it stands in the files.

    Raises UserError: a key that the chosen groups do not define, or a value that must be given and is not.
    """
    check_own_files(command, overrides, config_dir)
    check_composed = check_overrides(command, overrides, config_dir)
    with composer(config_dir) as compose:
        config = compose(command, list(overrides))
    check_composed(config)
    return config


def _check_modes(flags: argparse.Namespace) -> None:
    """Raise UserError for flags of Hydra that ask for several things at once, or that have nothing to act on."""
    modes = {
        "--run": flags.run,
        "--multirun": flags.multirun,
        "--cfg": flags.cfg,
        "--info": flags.info,
        "--shell-completion": flags.shell_completion,
    }
    given = [name for name, value in modes.items() if value]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} do not go together; leave out all but one")
    for name, value in (("--resolve", flags.resolve), ("--package", flags.package)):
        if value and not flags.cfg:
            raise UserError(f"{name} belongs to --cfg, which shows the configuration")


def _expand(overrides: list[str], config_dir: str | None) -> list[list[str]]:
    """Every combination of a sweep's values: a=1,2 b=3 gives [a=1, b=3] and [a=2, b=3].

    The order is that of Hydra's basic sweeper, and of two overrides of one key the later counts, as it does there. An
    interval has any number of values, and stands for its two ends here.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import IntervalSweep

    choices: dict[str, list[str]] = {}
    with composer(config_dir):
        # A parser with a loader of configurations can list the options of a group for glob(*).
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        for override in parser.parse_overrides(overrides):
            key = override.get_key_element()
            if not override.is_sweep_override():
                choices[key] = [as_typed(override)]
                continue

            interval = override.value()
            if isinstance(interval, IntervalSweep):
                values = [interval.start, interval.end]
            else:
                values = values_of_sweep(override)
            choices[key] = [f"{key}={value}" for value in values]
    return [list(job) for job in itertools.product(*choices.values())]


def values_of_sweep(override: "Override") -> list[str]:
    """The values that an override sweeps over; UserError for a range that does not go anywhere."""
    try:
        return list(override.sweep_string_iterator())
    except ValueError as error:  # of Python's range: its step is 0
        raise UserError(f"{as_typed(override)} is no sweep: {error}") from None
