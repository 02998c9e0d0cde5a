"""Command lines for Hydra: every job is composed and checked, then Hydra's sweeper and launcher run the jobs."""

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError
from gptmini.commands.configuration import (
    CONFIGS,
    as_typed,
    composer,
    sweep_described,
    without_sweeps,
)
from gptmini.commands.errors import MISUSE, explain, one_line_errors, print_mistake, refuse
from gptmini.commands.keys import check_overrides
from gptmini.commands.own_files import check_own_files
from gptmini.commands.showing import show_help, show_stored
from gptmini.commands.start_up import collector_paused
from gptmini.commands.stored import run_to_resume, stored_config

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


def run_configured(
    command: str,
    task: Callable,
    *,
    check: Callable | None = None,
    arguments: list[str] | None = None,
) -> None:
    """Let Hydra compose a configuration and launch task(config, overrides): once, or with -m once for each job.

    The keys of every job are checked before the first job starts, and in a sweep check(config) is called on every job
    before that too.

    Args:
        command: train or prepare, which is also the name of the root configuration.
        task: the function that does a job; its result goes to the sweeper. After its imports a task calls
            resume_collector.
        check: raises UserError for values that do not fit.
        arguments: flags and overrides; None for those of the command line.
    """
    if arguments is None:
        arguments = sys.argv[1:]

    with one_line_errors(), collector_paused():
        flags = _parse_flags(arguments)
        if flags.help:
            show_help(command, flags.overrides, flags.config_dir)
            return
        if flags.cfg and run_to_resume(command, flags.overrides) is not None:
            show_stored(command, flags)
            return

        only_shows = flags.hydra_help or flags.info or flags.shell_completion
        # Lightning starts one more process for each further device of a run. The first process has checked the run.
        is_further_process = int(os.environ.get("LOCAL_RANK", "0")) > 0

        checked = _Checked()
        if not only_shows and not is_further_process:
            checked = _check_jobs(command, flags, check)
        _launch(command, task, flags, arguments, checked)


def compose_checked(
    command: str, overrides: Sequence[str], config_dir: str | None = None
) -> "DictConfig":
    """Compose a configuration from overrides, or read the configuration of the run that they resume.

    Args:
        command: train or prepare, which is also the name of the root configuration.
        overrides: KEY=VALUE or GROUP=NAME each.
        config_dir: a folder of the user's own that adds options to the groups.

    Raises UserError: a key that the chosen groups do not define, or a value that must be given and is not.
    """
    run = run_to_resume(command, overrides)
    if run is not None:
        return stored_config(run, overrides, config_dir)

    check_own_files(command, overrides, config_dir)
    check_composed = check_overrides(command, overrides, config_dir)
    with composer(config_dir) as compose:
        config = compose(command, list(overrides))
    check_composed(config)
    return config


@dataclass(frozen=True)
class _Checked:
    """What the check of a command line has found before Hydra composes the jobs."""

    n_jobs: int = 1  # number of jobs, if the command line is a sweep over a grid of values

    # The check that remains for a single job once it is composed. None if nothing remains to be checked.
    check_composed: "Callable[[DictConfig], None] | None" = None


@dataclass(frozen=True)
class _Job:
    """The function that Hydra calls for each job, perhaps in another process than the program's own."""

    command: str
    task: Callable
    flags: argparse.Namespace
    argv: list[str]  # the program's, with which Lightning starts the further processes of a run
    process: int  # id of the process in which the program began
    checked: _Checked
    failures: list  # error of each job that failed in the program's own process

    def __call__(self, config: "DictConfig") -> Any:
        """Run the job. An error is kept in failures in the program's own process, and raised for Hydra in another."""
        from hydra.core.hydra_config import HydraConfig

        overrides = list(HydraConfig.get().overrides.task)
        is_own_process = os.getpid() == self.process
        sys.argv[:] = self.argv
        try:
            return self._run(config, overrides)
        except Exception as error:
            if not is_own_process:
                raise
            if self.flags.multirun:
                # Tell a mistake at once, because the other jobs of the sweep may take hours.
                mistake = explain(error)
                if mistake is not None:
                    print_mistake(f"the job {' '.join(overrides)} failed: {mistake}")
            self.failures.append(error)
            return None

    def _run(self, config: "DictConfig", overrides: list[str]) -> Any:
        """Check the composed configuration, or read that of the run to resume, and do the task."""
        if self.checked.check_composed is not None:
            self.checked.check_composed(config)
        if config.get("resume") is not None:
            config = stored_config(str(config.resume), overrides, self.flags.config_dir)
        if not self.flags.multirun:
            return self.task(config, overrides)

        print(f"job {self._number()}: {' '.join(overrides)}", flush=True)
        n_devices = config.get("trainer", {}).get("devices", 1)
        if n_devices == 1:
            return self.task(config, overrides)
        self._run_in_new_process(overrides)
        return None

    def _run_in_new_process(self, overrides: list[str]) -> None:
        """Run the command for one job of a sweep in a process of its own.

        Lightning and torch keep rank, port and process group of a run on several devices until their process ends, so
        two such runs cannot follow each other in one process.
        """
        program = [sys.executable, "-m", "gptmini", self.command]
        if self.flags.config_dir is not None:
            program += ["--config-dir", self.flags.config_dir]
        code = subprocess.run([*program, *overrides], check=False).returncode

        # A code below zero or above that of a mistake comes from a signal, which is meant for the whole sweep.
        if code > MISUSE or code < 0:
            sys.exit(code)
        if code != 0:
            raise UserError(f"its own process told why, and ended with exit code {code}")

    def _number(self) -> str:
        """The number of this job in its sweep, from 1, and in a grid of values the number of all jobs."""
        from hydra.core.hydra_config import HydraConfig

        hydra = HydraConfig.get()
        number = int(hydra.job.num) + 1
        is_grid = hydra.sweeper._target_.endswith(".BasicSweeper")
        if is_grid:
            return f"{number} of {self.checked.n_jobs}"
        return str(number)


def _parse_flags(arguments: list[str]) -> argparse.Namespace:
    """Read Hydra's own flags and the overrides; a mistake in them is told in one line.

    Raises UserError: a flag that would replace gptmini's configurations, or flags that do not go together.
    """
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.error = refuse
    flags = parser.parse_intermixed_args(arguments)

    if flags.config_path is not None or flags.config_name is not None:
        raise UserError(
            "--config-path and --config-name would replace gptmini's; "
            "--config-dir adds a folder to them"
        )
    _check_modes(flags)
    if flags.config_dir is not None and not Path(flags.config_dir).is_dir():
        raise UserError(f"--config-dir must be a folder, got {flags.config_dir}")
    return flags


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


def _check_jobs(command: str, flags: argparse.Namespace, check: Callable | None) -> _Checked:
    """Check the keys of a command line; for a sweep, compose every job and check its values too.

    Raises UserError: a key or a value of one of the jobs does not fit.
    """
    if not flags.multirun:
        run = run_to_resume(command, flags.overrides)
        if run is not None:
            stored_config(run, flags.overrides, flags.config_dir)
            return _Checked()
        check_own_files(command, without_sweeps(flags.overrides), flags.config_dir)
        return _Checked(check_composed=check_overrides(command, flags.overrides, flags.config_dir))

    # Of the files that several jobs use, a mistake is told before the files are asked for a sweep.
    check_own_files(command, without_sweeps(flags.overrides), flags.config_dir)
    described = sweep_described(command, flags.overrides, flags.config_dir)
    jobs = _expand([*described, *flags.overrides], flags.config_dir)
    if not jobs:
        raise UserError("the sweep has no job: a glob or a range in it stands for no value")
    for overrides in jobs:
        config = compose_checked(command, overrides, flags.config_dir)
        if check is not None:
            check(config)
    return _Checked(n_jobs=len(jobs))


def _expand(overrides: list[str], config_dir: str | None) -> list[list[str]]:
    """Every combination of a sweep's values: a=1,2 b=3 gives [a=1, b=3] and [a=2, b=3].

    An interval has any number of values, and stands for its two ends here.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import IntervalSweep

    choices = []
    with composer(config_dir):
        # A parser with a loader of configurations can list the options of a group for glob(*).
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        for override in parser.parse_overrides(overrides):
            if not override.is_sweep_override():
                choices.append([as_typed(override)])
                continue

            interval = override.value()
            key = override.get_key_element()
            if isinstance(interval, IntervalSweep):
                values = [interval.start, interval.end]
            else:
                values = _values_of_sweep(override)
            choices.append([f"{key}={value}" for value in values])
    return [list(job) for job in itertools.product(*choices)]


def _values_of_sweep(override: "Override") -> list[str]:
    """The values that an override sweeps over; UserError for a range that does not go anywhere."""
    try:
        return list(override.sweep_string_iterator())
    except ValueError as error:  # of Python's range: its step is 0
        raise UserError(f"{as_typed(override)} is no sweep: {error}") from None


def _launch(
    command: str,
    task: Callable,
    flags: argparse.Namespace,
    arguments: list[str],
    checked: _Checked,
) -> None:
    """Hand the command line to hydra.main, and raise what went wrong in a job once all jobs have run.

    A sweep in which jobs failed by mistakes of the user ends with exit code 2; each mistake was printed when it
    happened.

    Raises Exception: the error of a single run, or a bug that a job of a sweep met.
    """
    import hydra

    # Let Hydra raise the errors of a job, instead of printing them in several lines.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    argv = list(sys.argv)
    job = _Job(
        command=command,
        task=task,
        flags=flags,
        argv=argv,
        process=os.getpid(),
        checked=checked,
        failures=[],
    )

    # hydra.main takes a function, and reads the name and the module of the function.
    def run_job(config: "DictConfig") -> Any:
        return job(config)

    # hydra.main reads sys.argv, and takes no override after a flag.
    own_flags = list(arguments)
    for override in flags.overrides:
        own_flags.remove(override)
    sys.argv[:] = [argv[0], *flags.overrides, *own_flags]
    try:
        hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=command)(run_job)()
    finally:
        sys.argv[:] = argv

    for error in job.failures:
        was_printed = flags.multirun and explain(error) is not None
        if not was_printed:
            raise error
    if job.failures:
        sys.exit(MISUSE)
