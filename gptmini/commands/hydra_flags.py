"""Parse the command lines of train, prepare and sweep, and run one job, or several jobs with -m."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig

from gptmini.commands.help import show_help
from gptmini.commands.mistakes import one_line_errors, print_error
from gptmini.commands.options import Parser, at_least_one
from gptmini.configuration.compose import (
    Composition,
    as_user_errors,
    check_root,
    compose,
    quote_for_hydra,
    request_of_job,
)
from gptmini.configuration.keys import groups, known_keys, nearest_key
from gptmini.configuration.messages import explain
from gptmini.configuration.request import key_of
from gptmini.configuration.texts import is_override, override_for, texts_as_overrides, without_keys
from gptmini.configuration.user_modules import allow_user_modules
from gptmini.console.printing import print_lines
from gptmini.console.progress import Watcher
from gptmini.system.errors import UserError
from gptmini.system.files import CONFIGS
from gptmini.system.process import MISUSE, mute
from gptmini.system.version import __version__
from gptmini.system.world import this_world

# A function that runs a job of a command. With -m, its result goes to Hydra's sweepers.
Job = Callable[[Composition], Any]


def run_hydra_command(
    command: str, arguments: list[str], job: Job, dry_run: Job | None = None
) -> None:
    """Compose a configuration, and run a job with it. With -m, let Hydra run several jobs.

    --help and --cfg print the configuration instead. Each rank of a run calls this function, so a mistake of the user
    ends every rank. Only rank 0 prints the error.

    Args:
        command: 'train' or 'prepare'. This is also the name of the root configuration.
        arguments: flags and overrides.
        job: the function that runs the command.
        dry_run: the function that runs instead of the job with --dry-run. None: the command has no --dry-run.
    """
    world = this_world()
    mute(world.rank > 0)
    if world.size > 1:
        # torch would print pages of warnings if another rank is gone.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    with one_line_errors():
        flags = parse_flags(command, arguments)
        if flags.multirun and not flags.help:
            _run_jobs(command, flags, job)
            return

        composition = compose(command, flags.overrides, flags.config_dir)
        if flags.help:
            show_help(command, composition, flags.keys)
        elif flags.cfg:
            _show_configuration(command, composition)
        elif dry_run is not None and flags.dry_run:
            dry_run(composition)
        else:
            job(composition)


def _show_configuration(command: str, composition: Composition) -> None:
    """Print the configuration for a command line.

    If resume= or folder= names a run, print the configuration of this run.

    If budget=, epochs= or init_from= is set, prepare the text before printing, because some values depend on the text.
    """
    # pydantic is slow, and --help does not need it.
    from gptmini.configuration.building import as_yaml, build_settings
    from gptmini.configuration.stored import resolve_configuration

    plain, request = resolve_configuration(composition)
    is_new_run = command == "train" and plain["resume"] is None
    of_text = [plain[key] for key in ("budget", "epochs", "init_from")]
    if is_new_run and any(value is not None for value in of_text):
        settings = build_settings(plain)
        from gptmini.job import train

        train.build_callbacks(settings)
        train.prepare_process(settings)
        settings, *_ = train.open_run_tokens(settings, request, None, Watcher())
        plain = settings.plain
    if plain.get("resume") is not None:
        plain = {**plain, "folder": None}  # resume= names this folder
    text = as_yaml(plain)
    if sys.stdout.isatty():  # the run of another person may contain control characters
        print_lines(*text.splitlines())
    else:
        print(text, end="")


def _run_jobs(command: str, flags: argparse.Namespace, job: Job) -> None:
    """Let Hydra run a job for each combination of values. If a job fails by a mistake of the user, run the others."""
    launcher = this_world().launcher
    if launcher is not None:
        raise UserError(f"-m starts several runs, but {launcher} launches one; use gptmini sweep")

    # Let Hydra raise its errors instead of printing them on several lines.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    process = os.getpid()
    failures: list[Exception] = []

    # hydra.main requires a function, and reads its name and module.
    def run_job(config: Any) -> Any:
        # A launcher of Hydra may run the job in another process, which has not called allow_user_modules yet.
        allow_user_modules(HydraConfig.get().runtime.cwd)
        request = request_of_job(flags.config_dir)
        try:
            check_root(config, command)
            return job(Composition(config, request))
        except Exception as error:
            mistake = explain(error)
            if mistake is not None:
                # Print the error now, because the other jobs may take hours.
                print_error(f"job {' '.join(request.overrides)} failed: {mistake}")
            # A launcher may run the job in another process. That process can report an error only as an exception.
            if os.getpid() != process or mistake is None:
                raise
            failures.append(error)
            return None

    overrides = quote_for_hydra(flags.overrides, multirun=True)
    _check_jobs_differ(overrides)
    folder = [] if flags.config_dir is None else ["--config-dir", flags.config_dir]
    given_argv = list(sys.argv)
    sys.argv[1:] = [*overrides, *folder, "--multirun"]
    try:
        with as_user_errors():
            hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=command)(run_job)()
    finally:
        sys.argv[:] = given_argv
    if failures:
        sys.exit(MISUSE)


def parse_flags(command: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line of train, prepare or sweep.

    Returns the options. The field overrides has the overrides, and the field keys has the keys whose help is shown.

    Raises UserError if an override cannot be parsed, or if the folder of --config-dir does not exist.
    """
    parser = Parser(prog=f"gptmini {command}", add_help=False)
    parser.error = lambda message: _refuse(parser, message, arguments, command)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--config-dir")
    if command == "sweep":
        parser.add_argument("--jobs", type=at_least_one, default=1)
    else:
        parser.add_argument("--version", action="version", version=__version__)
        only_one = parser.add_mutually_exclusive_group()
        only_one.add_argument("--multirun", "-m", action="store_true")
        only_one.add_argument("--cfg", "-c", choices=["job"])
        if command == "train":
            only_one.add_argument("--dry-run", action="store_true")
    flags = parser.parse_intermixed_args(arguments)
    if flags.config_dir is not None and not Path(flags.config_dir).is_dir():
        raise UserError(f"--config-dir must be an existing folder, got {flags.config_dir}")

    flags.keys, words = without_keys(flags.overrides) if flags.help else ([], flags.overrides)
    flags.overrides = texts_as_overrides(words)
    return flags


def _refuse(parser: Parser, message: str, arguments: Sequence[str], command: str) -> NoReturn:
    unknown = re.match(r"unrecognized arguments: (-\S+)", message)
    override = unknown and _override_meant(parser, unknown[1], arguments, command)
    if unknown and override:
        message = f"{unknown[1].partition('=')[0]} is not an option; write {override}"
    Parser.error(parser, message)


def _override_meant(
    parser: Parser, option: str, arguments: Sequence[str], command: str
) -> str | None:
    """Return the override that an unknown option means, such as optimizer.lr=0.1 for --lr 0.1."""
    keys = [*known_keys(), *groups()]
    if command != "sweep":
        keys = [key for key in keys if key.partition(".")[0] != "sweep"]
    i = next(i for i in range(len(arguments)) if arguments[i].startswith(option))
    name, equals, value = arguments[i].lstrip("-").partition("=")
    name = name.replace("-", "_")
    is_key = name in keys or any(key.partition(".")[2] == name for key in keys)
    if not is_key and parser.similar_flag(option):
        return None
    key = name if name in keys else nearest_key(name)
    if key.partition("=")[0] not in keys:
        return None

    if not equals:
        value = next(filter(_is_value, arguments[i + 1 : i + 2]), "VALUE")
    return override_for(key, value)


def _is_value(word: str) -> bool:
    """Whether the word after an option can be its value. A negative number can, and so can - (standard input)."""
    is_option = re.match(r"-[^\d.]", word) is not None
    return not is_option and not is_override(word)


def _check_jobs_differ(overrides: Sequence[str]) -> None:
    """Raise UserError if all jobs would train the same run, or if a job would start with the weights of another job."""
    from gptmini.runs import named_run  # imports pydantic, which is slow

    for line in overrides:
        key, value = key_of(line), line.partition("=")[2]
        if key in ("folder", "resume") and "," not in value and "${" not in value:
            raise UserError(
                f"{line} names a single run, but -m starts several; give each a folder, such as "
                "folder=runs/mine/${hydra:job.num}"
            )
        # If a path is a folder but not the folder of a run, it means the latest run in this folder.
        place = Path(value).expanduser()
        is_newest = place.name == "latest" or (place.is_dir() and named_run(place) != place)
        if key == "init_from" and is_newest:
            raise UserError(
                f"{line} means the latest run, but each job of -m changes the latest run; give the folder of one run"
            )
