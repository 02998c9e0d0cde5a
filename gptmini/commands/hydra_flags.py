"""Commands that Hydra composes a configuration for: their flags, and the job or the jobs of -m."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gptmini.commands.help import show_help
from gptmini.commands.mistakes import complaint, one_line_errors, print_mistake
from gptmini.configuration.compose import Composed, check_root, in_one_class, typed_for_job
from gptmini.configuration.keys import known_keys
from gptmini.configuration.messages import explain
from gptmini.configuration.overrides import in_hydras_grammar, key_of
from gptmini.configuration.own_modules import find_in
from gptmini.files import CONFIGS
from gptmini.process import MISUSE, mute
from gptmini.user_error import UserError
from gptmini.version import __version__
from gptmini.world import this_world

# Does a job of a command; what it returns is for Hydra's sweepers.
Job = Callable[[Composed], Any]


def run_composed(command: str, arguments: list[str], job: Job, show: Job) -> None:
    """Let Hydra compose a configuration, and do a job with it: once, or with -m for each job.

    --help and --cfg show the configuration instead. Each rank of a run does all this, so that a mistake ends each of
    them; the first one tells the user.

    Args:
        command: train or prepare, which is also the name of the root configuration.
        arguments: flags and overrides.
        job: what the command does.
        show: what it does for --cfg.
    """
    world = this_world()
    mute(world.rank > 0)
    if world.size > 1:
        # torch would print pages of warnings where another rank is gone.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with one_line_errors():
        flags, argv = parse_flags(arguments)
        launcher = world.launcher
        if flags.multirun and launcher is not None:
            raise UserError(f"{launcher} starts the ranks of one run, and -m asks for several runs")
        _run(command, flags, argv, show if flags.cfg else job)


def _run(command: str, flags: argparse.Namespace, argv: list[str], job: Job) -> None:
    """Do what run_composed does, and raise the mistake of a user."""
    import hydra

    # Hydra raises its errors, instead of printing them in several lines.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    process = os.getpid()
    failures: list[Exception] = []

    # hydra.main takes a function, and reads the name and the module of the function.
    def run_job(config: Any) -> Any:
        from hydra.core.hydra_config import HydraConfig

        # One of Hydra's launchers may run the job in another process, where find_in was not called.
        find_in(HydraConfig.get().runtime.cwd)
        typed = typed_for_job(flags.config_dir)
        try:
            check_root(config, command)
            composed = Composed(config, typed)
            if flags.help:
                return show_help(command, composed, flags.shown_keys)
            return job(composed)
        except Exception as error:
            mistake = explain(error)
            if flags.multirun and mistake is not None:
                # Tell a mistake at once, because the other jobs of the sweep may take hours.
                print_mistake(f"the job {' '.join(typed.overrides)} failed: {mistake}")
            # A launcher may run the job in another process, which can hand nothing else back.
            if os.getpid() != process:
                raise
            failures.append(error)
            return None

    typed_argv = list(sys.argv)
    sys.argv[1:] = argv
    try:
        with in_one_class():
            hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=command)(run_job)()
    finally:
        sys.argv[:] = typed_argv

    for error in failures:
        was_told = flags.multirun and explain(error) is not None
        if not was_told:
            raise error
    if failures:
        sys.exit(MISUSE)


def parse_flags(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read Hydra's flags and the overrides; a mistake in them is told in one line.

    Returns the flags, and the command line for Hydra: overrides in its grammar, and the flags that Hydra is to see.
    Raises UserError: a flag that would replace gptmini's configurations, or an override that is none.
    """
    # Hydra 1.3 shows its flags nowhere else.
    from hydra._internal.utils import get_args_parser

    parser = argparse.ArgumentParser(
        parents=[get_args_parser()],
        add_help=False,  # Hydra's parser has it
        allow_abbrev=False,  # --experiment would stand for a flag that means something else
        conflict_handler="resolve",  # for --version
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.error = lambda message: _refuse(parser, message)
    flags = parser.parse_intermixed_args(arguments)

    if flags.experimental_rerun is not None:
        raise UserError("--experimental-rerun would load pickled code; resume= goes on with a run")
    if flags.config_path is not None or flags.config_name is not None:
        raise UserError(
            "--config-path and --config-name would replace gptmini's; --config-dir adds a folder to them"
        )
    if flags.config_dir is not None and not Path(flags.config_dir).is_dir():
        raise UserError(f"--config-dir must be a folder, got {flags.config_dir}")

    # gptmini shows the help and the configuration of a job itself: Hydra would show them before resume= is looked at.
    flags.shown_keys = []
    if flags.help:
        flags.shown_keys = [word for word in flags.overrides if "=" not in word]
        flags.overrides = [word for word in flags.overrides if "=" in word]
    shows_job = flags.cfg == "job" and not flags.package
    if flags.cfg and not shows_job:
        if any(key_of(word) in ("resume", "folder") for word in flags.overrides):
            raise UserError(
                "--cfg job, without --package, shows the configuration of a run that goes on"
            )
        flags.cfg = None
        return flags, arguments

    overrides = in_hydras_grammar(flags.overrides, multirun=flags.multirun)
    if flags.multirun:
        _check_jobs_differ(overrides)
    own = [] if flags.config_dir is None else ["--config-dir", flags.config_dir]
    for name in ("multirun", "hydra_help", "shell_completion"):
        if getattr(flags, name):
            own.append(f"--{name.replace('_', '-')}")
    if flags.info:
        own += ["--info", flags.info]
    return flags, [*overrides, *own]


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """Print what is wrong with the flags as one line on stderr, and exit with code 2."""
    groups = [place.name for place in CONFIGS.iterdir() if place.is_dir()]
    word = message.rpartition("unrecognized arguments: --")[2].partition(" ")[0].partition("=")[0]
    if word in known_keys() or word in groups:
        message = f"--{word} is no flag, but a key: {word}=VALUE"
    else:
        message = complaint(parser, message)
    print_mistake(message)
    sys.exit(MISUSE)


def _check_jobs_differ(overrides: Sequence[str]) -> None:
    """Raise UserError for jobs that would all be one run, or that would begin with each other's weights."""
    from gptmini.runs import named_run

    for line in overrides:
        key = key_of(line)
        value = line.partition("=")[2]
        differs = any(mark in value for mark in (",", "${"))
        if key in ("folder", "resume") and not differs:
            raise UserError(
                f"{line} names one run, and -m asks for several; folder=runs/mine/${{hydra:job.num}} differs by job"
            )
        if key != "init_from":
            continue

        # Another path than that of a run stands for the newest run in it.
        place = Path(value).expanduser()
        is_newest = place.name == "latest" or (place.is_dir() and named_run(place) != place)
        if is_newest:
            raise UserError(
                f"{line} is the newest run, which each job changes; name the run itself"
            )
