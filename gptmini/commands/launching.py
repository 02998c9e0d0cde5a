"""Command lines for Hydra: every job is composed and checked, then Hydra's sweeper and launcher run them."""

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError
from gptmini.commands.configuration import CONFIGS, check_overrides, composer, sweep_described
from gptmini.commands.errors import MISUSE, explain, one_line_errors, print_mistake, refuse
from gptmini.commands.start_up import collector_paused
from gptmini.commands.stored import stored_config

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run_configured(
    command: str, task: Callable, *, check: Callable | None = None, arguments: list[str] | None = None
) -> None:
    """Let Hydra compose a configuration and launch task(config, overrides): once, or with -m once for each job.

    Before the first job starts every job is composed, its keys are checked, and check(config) is called on it.

    Args:
        command: train or prepare, which is also the name of the root configuration.
        task: what a job does; what it returns is what a sweeper sees. After its imports a task calls resume_collector.
        check: raises UserError for values that do not fit.
        arguments: flags and overrides; None for those of the command line.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    with one_line_errors(), collector_paused():
        flags = _parse(arguments)
        only_shows = flags.help or flags.hydra_help or flags.cfg or flags.info or flags.shell_completion
        is_further_process = int(os.environ.get("LOCAL_RANK", "0")) > 0  # of a run that the first one has checked
        checked = _Checked()
        if not only_shows and not is_further_process:
            checked = _check_jobs(command, flags, check)
        _launch(command, task, flags, arguments, checked)


def compose_checked(command: str, overrides: Sequence[str], config_dir: str | None = None) -> "DictConfig":
    """Compose a configuration from overrides, or read that of the run to resume.

    config_dir is a folder of a user's own that adds options to the groups.
    Raises UserError: a key that the chosen groups do not define, or a value that must be given and is not.
    """
    run = run_to_resume(overrides)
    if run is not None:
        return stored_config(run, overrides, config_dir)

    check_composed = check_overrides(command, overrides, config_dir)
    with composer(config_dir) as compose:
        config = compose(command, list(overrides))
    check_composed(config)
    return config


def run_to_resume(overrides: Sequence[str]) -> str | None:
    """The run folder or checkpoint that overrides name to go on with; None if they begin a new run."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    run = None
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.key_or_group == "resume" and not override.is_delete():
            run = override.value()
    return None if run is None else str(run)


@dataclass(frozen=True)
class _Checked:
    """What is known of a command line before Hydra composes it."""

    n_jobs: int = 1  # that a grid of values comes to
    check_composed: "Callable[[DictConfig], None] | None" = None  # what is left to check of a single job


@dataclass(frozen=True)
class _Job:
    """What Hydra calls for each job; it may do so in another process."""

    command: str
    task: Callable
    flags: argparse.Namespace
    argv: list[str]  # of the program, with which Lightning starts the further processes of a run
    process: int  # in which the program began
    checked: _Checked
    failures: list  # error of each job that failed in that process

    def __call__(self, config: "DictConfig") -> Any:
        """Run the job. In the program's own process its error is kept in failures, elsewhere raised for Hydra."""
        from hydra.core.hydra_config import HydraConfig

        overrides = list(HydraConfig.get().overrides.task)
        here = os.getpid() == self.process
        sys.argv[:] = self.argv
        try:
            return self._run(config, overrides)
        except Exception as error:
            if not here:
                raise
            if self.flags.multirun and explain(error) is not None:
                print_mistake(
                    f"the job {' '.join(overrides)} failed: {explain(error)}"
                )  # now, for the others may take hours
            self.failures.append(error)
            return None

    def _run(self, config: "DictConfig", overrides: list[str]) -> Any:
        if self.checked.check_composed is not None:
            self.checked.check_composed(config)
        if config.get("resume") is not None:
            config = stored_config(str(config.resume), overrides, self.flags.config_dir)
        if not self.flags.multirun:
            return self.task(config, overrides)

        print(f"job {self._number()}: {' '.join(overrides)}", flush=True)
        if config.get("trainer", {}).get("devices", 1) == 1:
            return self.task(config, overrides)

        # Lightning and torch keep rank, port and process group until the process ends: each job gets one of its own.
        own_folder = [] if self.flags.config_dir is None else ["--config-dir", self.flags.config_dir]
        program = [sys.executable, "-m", "gptmini", self.command, *own_folder, *overrides]
        code = subprocess.run(program, check=False).returncode
        if code > MISUSE or code < 0:
            sys.exit(code)  # a signal, which is meant for the whole sweep
        if code:
            raise UserError(f"its own process told why, and ended with exit code {code}")
        return None

    def _number(self) -> str:
        """Which job of a sweep this is, from 1, and of how many where the sweep is a grid."""
        from hydra.core.hydra_config import HydraConfig

        hydra = HydraConfig.get()
        number = int(hydra.job.num) + 1
        is_grid = hydra.sweeper._target_.endswith(".BasicSweeper")
        return f"{number} of {self.checked.n_jobs}" if is_grid else str(number)


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Hydra's own flags, and the overrides; a mistake in them is told in one line."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.error = refuse
    flags = parser.parse_intermixed_args(arguments)
    if flags.config_path is not None or flags.config_name is not None:
        raise UserError("--config-path and --config-name would replace gptmini's; --config-dir adds a folder to them")
    if flags.multirun and flags.cfg:
        raise UserError("--cfg shows one job; leave out -m")
    if flags.config_dir is not None and not Path(flags.config_dir).is_dir():
        raise UserError(f"--config-dir must be a folder, got {flags.config_dir}")
    return flags


def _launch(command: str, task: Callable, flags: argparse.Namespace, arguments: list[str], checked: _Checked) -> None:
    """Hand the command line to hydra.main.

    The error of a single run is raised, and so is a bug in a sweep; a sweep with jobs that failed otherwise, each told
    when it failed, ends in exit code 2.
    """
    import hydra

    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise to us, instead of printing several lines
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

    def run_job(config: "DictConfig") -> Any:
        return job(config)

    own_flags = list(arguments)
    for override in flags.overrides:
        own_flags.remove(override)
    sys.argv[:] = [argv[0], *flags.overrides, *own_flags]  # hydra.main takes no override after a flag
    try:
        hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=command)(run_job)()
    finally:
        sys.argv[:] = argv

    unexplained = [error for error in job.failures if not flags.multirun or explain(error) is None]
    if unexplained:
        raise unexplained[0]
    if job.failures:
        sys.exit(MISUSE)  # each was told when it happened


def _check_jobs(command: str, flags: argparse.Namespace, check: Callable | None) -> _Checked:
    """Check the keys of a command line; in a sweep compose every job and check its values too.

    Raises UserError: what does not fit in one of them.
    """
    if not flags.multirun:
        run = run_to_resume(flags.overrides)
        if run is not None:
            stored_config(run, flags.overrides, flags.config_dir)
            return _Checked()
        return _Checked(check_composed=check_overrides(command, flags.overrides, flags.config_dir))

    described = sweep_described(command, flags.overrides, flags.config_dir)
    jobs = list(_expand([*described, *flags.overrides], flags.config_dir))
    for overrides in jobs:
        config = compose_checked(command, overrides, flags.config_dir)
        if check is not None:
            check(config)
    return _Checked(n_jobs=len(jobs))


def _expand(overrides: list[str], config_dir: str | None) -> Iterator[list[str]]:
    """Every combination of a sweep's values: a=1,2 b=3 gives [a=1, b=3] and [a=2, b=3]; of an interval its two ends."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import IntervalSweep

    choices = []
    with composer(config_dir):
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())  # which knows the options for glob(*)
        for override in parser.parse_overrides(overrides):
            value = override.value()
            if not override.is_sweep_override():
                choices.append([override.input_line])
            elif isinstance(value, IntervalSweep):
                choices.append([f"{override.get_key_element()}={end}" for end in (value.start, value.end)])
            else:
                choices.append([f"{override.get_key_element()}={text}" for text in override.sweep_string_iterator()])
    return (list(job) for job in itertools.product(*choices))
