"""Parse the flags of the commands with a Hydra configuration, and run one job, or several jobs with -m."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gptmini.commands.help import show_help
from gptmini.commands.mistakes import (
    complaint,
    one_line_errors,
    print_error,
    refuse_options_as_keys,
    similar_option,
)
from gptmini.configuration.compose import Composed, as_user_errors, check_root, typed_for_job
from gptmini.configuration.keys import groups, known_keys, nearest_key
from gptmini.configuration.messages import explain
from gptmini.configuration.overrides import key_of, quote_for_hydra
from gptmini.configuration.texts import is_override, override_for, texts_as_overrides, without_keys
from gptmini.configuration.user_modules import allow_user_modules
from gptmini.files import CONFIGS
from gptmini.process import MISUSE, mute
from gptmini.user_error import UserError
from gptmini.version import __version__
from gptmini.world import this_world

# A function that runs a job of a command. The result of the function goes to Hydra's sweepers.
Job = Callable[[Composed], Any]


def run_hydra_command(
    command: str, arguments: list[str], job: Job, show: Job, dry_run: Job | None = None
) -> None:
    """Let Hydra compose a configuration, and run a job with it. With -m, run several jobs.

    --help and --cfg print the configuration instead. Each rank of a run calls this function, so a mistake of the user
    ends every rank. Only rank 0 prints the error.

    Args:
        command: 'train' or 'prepare'. This is also the name of the root configuration.
        arguments: flags and overrides.
        job: the function that runs the command.
        show: the function that prints the configuration for --cfg.
        dry_run: the function that runs instead of the job with --dry-run. None: the command has no --dry-run.
    """
    world = this_world()
    mute(world.rank > 0)
    if world.size > 1:
        # torch would print pages of warnings if another rank is gone.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with one_line_errors():
        flags, argv = parse_flags(arguments, has_dry_run=dry_run is not None)
        if flags.dry_run and dry_run is not None:
            job = dry_run
        launcher = world.launcher
        if flags.multirun and launcher is not None:
            raise UserError(
                f"-m starts several runs, but {launcher} launches a single run; use gptmini sweep instead of -m"
            )
        _run(command, flags, argv, show if flags.cfg else job)


def _run(command: str, flags: argparse.Namespace, argv: list[str], job: Job) -> None:
    """Run the command as run_hydra_command does, but raise errors instead of printing them."""
    import hydra

    # Let Hydra raise its errors instead of printing them on several lines.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    process = os.getpid()
    failures: list[Exception] = []

    # hydra.main requires a function, and reads its name and module.
    def run_job(config: Any) -> Any:
        from hydra.core.hydra_config import HydraConfig

        # A launcher of Hydra may run the job in another process, which has not called allow_user_modules yet.
        allow_user_modules(HydraConfig.get().runtime.cwd)
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
                # Print the error now, because the other jobs may take hours.
                print_error(f"job {' '.join(typed.overrides)} failed: {mistake}")
            # A launcher may run the job in another process. That process can report an error only as an exception.
            if os.getpid() != process:
                raise
            failures.append(error)
            return None

    given_argv = list(sys.argv)
    sys.argv[1:] = argv
    try:
        with as_user_errors():
            hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=command)(run_job)()
    finally:
        sys.argv[:] = given_argv

    for error in failures:
        is_printed = flags.multirun and explain(error) is not None
        if not is_printed:
            raise error
    if failures:
        sys.exit(MISUSE)


def parse_flags(
    arguments: list[str], *, has_dry_run: bool = False
) -> tuple[argparse.Namespace, list[str]]:
    """Parse Hydra's flags, --dry-run if the command has this flag, and the overrides.

    Returns the flags, and the command line for Hydra: overrides in Hydra's grammar, and the flags that Hydra handles.

    Raises UserError if a flag would replace gptmini's configurations, or if an override cannot be parsed.
    """
    # Hydra 1.3 has no public function for its parser.
    from hydra._internal.utils import get_args_parser

    parser = argparse.ArgumentParser(
        parents=[get_args_parser()],
        add_help=False,  # Hydra's parser adds it
        allow_abbrev=False,  # --experiment would mean --experimental-rerun
        conflict_handler="resolve",  # for --version
    )
    parser.add_argument("--version", action="version", version=__version__)
    # --run has no effect. Without help, messages do not suggest it.
    parser.add_argument("--run", "-r", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", action="store_true")
    parser.error = lambda message: refuse(parser, message, arguments)
    flags = parser.parse_intermixed_args(arguments)
    refuse_options_as_keys(parser, flags.overrides)
    _check_flags(flags, has_dry_run)

    # gptmini prints the help and the configuration itself, because Hydra would print them without resolving resume=.
    words = flags.overrides
    hydra_flags = [word for word in arguments if word not in words]
    flags.shown_keys = []
    if flags.help:
        flags.shown_keys, words = without_keys(words)
    flags.overrides = texts_as_overrides(words)
    shows_job = flags.cfg == "job" and not flags.package
    if flags.cfg and not shows_job:
        if any(key_of(word) in ("resume", "folder") for word in flags.overrides):
            raise UserError(
                "to print the configuration of a resumed run, use --cfg job without --package"
            )
        flags.cfg = None
        return flags, [*flags.overrides, *hydra_flags]

    overrides = quote_for_hydra(flags.overrides, multirun=flags.multirun)
    if flags.multirun:
        _check_jobs_differ(overrides)
    own = [] if flags.config_dir is None else ["--config-dir", flags.config_dir]
    for name in ("multirun", "hydra_help"):
        if getattr(flags, name):
            own.append(f"--{name.replace('_', '-')}")
    if flags.info:
        own += ["--info", flags.info]
    return flags, [*overrides, *own]


def _check_flags(flags: argparse.Namespace, has_dry_run: bool) -> None:
    """Raise UserError if flags exclude each other, or if gptmini or the command does not support a flag."""
    if flags.dry_run and not has_dry_run:
        raise UserError("unsupported option --dry-run; use gptmini train --dry-run")
    if flags.dry_run and (flags.cfg or flags.multirun):
        other = "--cfg" if flags.cfg else "-m"
        raise UserError(f"give either --dry-run or {other}, not both")
    if flags.experimental_rerun is not None:
        raise UserError(
            "--experimental-rerun would load pickled code; to resume a run, use resume="
        )
    if flags.shell_completion:
        raise UserError("unsupported option --shell-completion; see gptmini train --help")
    if flags.config_path is not None or flags.config_name is not None:
        raise UserError(
            "--config-path and --config-name would replace gptmini's configuration files; add your own files with "
            "--config-dir"
        )
    if flags.config_dir is not None and not Path(flags.config_dir).is_dir():
        raise UserError(f"--config-dir must be an existing folder, got {flags.config_dir}")


def refuse(
    parser: argparse.ArgumentParser,
    message: str,
    arguments: Sequence[str],
    *,
    with_sweep: bool = False,
) -> NoReturn:
    """Print an error of argparse as one line on stderr, and exit with code 2.

    If an unknown option has the name of a key, the message shows the override with the value of the option.

    Args:
        parser: the parser that found the error.
        message: argparse's message.
        arguments: the command line of the parser.
        with_sweep: True if the command has the keys of the group 'sweep'.
    """
    unknown = re.match(r"unrecognized arguments: (-\S+)", message)
    override = None
    if unknown is not None:
        keys = [*known_keys(), *groups()]
        if not with_sweep:
            keys = [key for key in keys if key.partition(".")[0] != "sweep"]
        override = _override_meant(parser, unknown[1], arguments, keys)
    if unknown is not None and override is not None:
        option = unknown[1].partition("=")[0]
        message = f"{option} is not an option; write {override}"
    else:
        message = complaint(parser, message)
    print_error(message)
    sys.exit(MISUSE)


def _override_meant(
    parser: argparse.ArgumentParser, option: str, arguments: Sequence[str], keys: Sequence[str]
) -> str | None:
    """Return the override that an unknown option means, such as optimizer.lr=0.1 for --lr 0.1.

    Return None if the name is not in the keys and another option is similar, or if none of the keys is similar.
    """
    i = next(i for i in range(len(arguments)) if arguments[i].startswith(option))
    name, equals, value = arguments[i].lstrip("-").partition("=")
    name = name.replace("-", "_")
    is_key = name in keys or any(key.partition(".")[2] == name for key in keys)
    if not is_key and similar_option(parser, option) is not None:
        return None
    key = name if name in keys else nearest_key(name)
    if key.partition("=")[0] not in keys:
        return None

    if not equals:
        value = next(filter(_is_value, arguments[i + 1 : i + 2]), "VALUE")
    return override_for(key, value)


def _is_value(word: str) -> bool:
    """Whether the word after an option can be its value. A negative number is a value, and - is standard input."""
    is_option = re.match(r"-[^\d.]", word) is not None
    return not is_option and not is_override(word)


def _check_jobs_differ(overrides: Sequence[str]) -> None:
    """Raise UserError if all jobs would train the same run, or if a job would start with the weights of another job."""
    from gptmini.runs import named_run

    for line in overrides:
        key = key_of(line)
        value = line.partition("=")[2]
        differs = any(mark in value for mark in (",", "${"))
        if key in ("folder", "resume") and not differs:
            fix = "give each run its own folder, such as folder=runs/mine/${hydra:job.num}"
            if key == "resume":
                fix = "leave out -m"
            raise UserError(f"{line} names a single run, but -m starts several runs; {fix}")
        if key != "init_from":
            continue

        # If a path is a folder but not the folder of a run, it means the latest run in this folder.
        place = Path(value).expanduser()
        is_newest = place.name == "latest" or (place.is_dir() and named_run(place) != place)
        if is_newest:
            raise UserError(
                f"{line} means the latest run, but each job of -m changes the latest run; give the folder of one run"
            )
