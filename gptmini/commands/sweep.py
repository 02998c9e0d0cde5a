"""Train a run for each of many values, and find the best: gptmini sweep [KEY=VALUES ...] [--jobs N]."""

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.commands.configuration import items_of, key_typed, plain_tree, read_yaml
from gptmini.commands.errors import Once, Parser, naming_keys, one_line_errors
from gptmini.commands.initial import remembering_sources
from gptmini.commands.jobs import compose_checked, composed
from gptmini.commands.quoting import in_hydras_grammar
from gptmini.commands.showing import show_help
from gptmini.commands.start_up import started, starting_up
from gptmini.commands.sweep_driver import Driver
from gptmini.commands.sweep_space import Space, is_own, space_of
from gptmini.commands.tokens import open_tokens
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gptmini.search import LauncherSettings, SearchSettings

UNFINISHED = 1  # exit code of a sweep of which a trial has failed
# Keys that may be other ones when a sweep goes on: where and how runs are computed, never what is trained.
MAY_CHANGE = (
    "console",
    "data_dir",
    "num_workers",
    "runs_dir",
    "resume",
    "trainer.batch_size",
    "trainer.checkpoint_activations",
    "trainer.compile",
    "trainer.device",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
    "trainer.threads",
    "trainer.timeout",
)
# Groups and keys that can change what a token is. Runs that differ in one of them are compared by bits per byte.
CHANGE_TOKENS = ("data", "tokenizer", "experiment", "init_from")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; overrides holds what is no option."""
    parser = Parser(prog="gptmini sweep", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--jobs", type=int, action=Once)
    parser.add_argument("--config-dir", action=Once)
    parser.add_argument("--help", "-h", action="store_true")
    options = parser.parse_intermixed_args(arguments)

    if options.config_dir is not None and not Path(options.config_dir).is_dir():
        parser.error(f"--config-dir must be a folder, got {options.config_dir}")
    return options


def main(arguments: list[str] | None = None) -> None:
    """Train every run of a sweep, or those that are left of it, and exit with 0 only if all have finished."""
    with one_line_errors(), starting_up(), remembering_sources():
        options = parse(arguments)
        own = in_hydras_grammar(line for line in options.overrides if is_own(line))
        for line in own:
            if line.lstrip("+~").startswith("sweep.params"):
                raise UserError(
                    f"what is varied is typed by itself, as optimizer.lr=0.1,0.2; got {line}"
                )
        if options.help:
            show_help("sweep", own, options.config_dir)
            return

        from gptmini.search import check_installed

        check_installed()
        if options.jobs is not None:
            own.append(f"launcher.jobs={options.jobs}")
        described = _described(own, options.config_dir)
        typed = [line for line in options.overrides if not is_own(line)]
        if not any(key_typed(line) == "name" for line in typed):
            typed.append(f"name={described.search.name}")
        space = space_of(described.params, typed, options.config_dir)

        config = _check(space, options.config_dir)
        code = _run(described, space, config, options.config_dir)
    sys.exit(code)


@dataclass(frozen=True)
class Described:
    """What the groups sweep and launcher of the configuration say."""

    search: "SearchSettings"
    launcher: "LauncherSettings"
    params: dict[str, Any]


def _described(overrides: Sequence[str], config_dir: str | None) -> Described:
    """Compose the sweep's own configuration; UserError for a key or a value that does not fit."""
    from gptmini.search import LauncherSettings, SearchSettings

    config = plain_tree(composed("sweep", overrides, config_dir), resolve=True)
    params = config["sweep"].pop("params", None) or {}
    if not isinstance(params, dict):
        raise UserError(f"sweep.params must hold values by key, got {params!r}")
    try:
        search = SearchSettings(**config["sweep"])
        launcher = LauncherSettings(**config["launcher"])
    except TypeError as error:
        raise UserError(
            f"{error}; an option of your own begins with defaults: [default, _self_]"
        ) from None
    return Described(search, launcher, params)


def _check(space: Space, config_dir: str | None) -> "DictConfig":
    """Compose and check a run for every value that is varied; return the configuration of the first.

    Of every key each value is tried beside the first values of the others: every combination might be too many.
    Raises UserError: a key or a value that does not fit.
    """
    from gptmini.commands.train import check_job

    first = compose_checked("train", space.overrides(space.first), config_dir)
    check_job(first)
    for dimension in space.dimensions:
        for text in dimension.examples[1:]:
            overrides = space.overrides(space.first | {dimension.key: text})
            check_job(compose_checked("train", overrides, config_dir))
    return first


def _run(described: Described, space: Space, config: "DictConfig", config_dir: str | None) -> int:
    """Train what is left of the sweep; return the exit code."""
    from gptmini.commands.plan import check_configuration
    from gptmini.run_folder.folder import locked
    from gptmini.search import Launcher, Study

    if config.callbacks is None or config.callbacks.get("checkpoints") is None:
        raise UserError(
            "a sweep compares the best validations of its runs, which callbacks.checkpoints keeps"
        )
    plan = check_configuration(config)
    device = plan.hardware.device
    needed = plan.settings.devices_here
    if device == "cuda" and 0 < described.launcher.gpus < needed:
        raise UserError(
            f"trainer.devices={needed} needs launcher.gpus={needed}, got {described.launcher.gpus}"
        )
    folder = Path(config.runs_dir) / config.name / "sweep"
    launcher = Launcher(described.launcher, folder / "jobs", _gpus() if device == "cuda" else ())
    started()

    with naming_keys(runs_dir=config.runs_dir):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "run"):
        # Runs that start together would each prepare the same text. The jobs of a cluster prepare it themselves.
        if described.launcher.cluster == "local":
            _prepare(config)
        identity = _identify(folder, described.search, space, config)
        driver = Driver(
            folder=folder,
            study=Study(folder, space.dimensions, described.search, config.trainer.max_steps),
            launcher=launcher,
            space=space,
            settings=described.search,
            identity=identity,
            by_bits=any(_changes_tokens(dimension.key) for dimension in space.dimensions),
            config_dir=config_dir,
        )
        signal_number = driver.run()
        is_whole = driver.say_ending()

    if signal_number:
        return 128 + signal_number
    if is_whole:
        return 0
    return UNFINISHED


def _prepare(config: "DictConfig") -> None:
    """Prepare the text of a configuration, unless it is prepared; UserError for a text that cannot be trained on."""
    from gptmini.data import Watcher

    watcher = Watcher(
        on_note=lambda note: print(f"{'data':8} {note}", flush=True),
        on_warning=lambda note: print(f"{'warning':8} {note}", flush=True),
    )
    with naming_keys(data_dir=config.data_dir):
        open_tokens(config, None, watcher=watcher)


def _changes_tokens(key: str) -> bool:
    return key.lstrip("+").partition(".")[0] in CHANGE_TOKENS


def _gpus() -> list[str]:
    """The GPUs of this machine that may be used, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


def _identify(folder: Path, settings: "SearchSettings", space: Space, config: "DictConfig") -> str:
    """Write down what the sweep is in sweep.yaml, or compare it with what is written there.

    Returns what tells this sweep from others of its name, also later ones in the same place.
    Raises UserError: the folder is that of a sweep over another space, or of other runs.
    """
    import yaml

    from gptmini.files import replacing

    path = folder / "sweep.yaml"
    tree = dict(items_of(plain_tree(config, resolve=True)))
    varied = {dimension.key for dimension in space.dimensions}
    fixed = {
        key: value
        for key, value in tree.items()
        if key not in MAY_CHANGE and key not in varied and not isinstance(value, dict | list)
    }
    own = {
        "sampler": settings.sampler_for(space.dimensions),
        "seed": settings.seed,
        "pruner": settings.pruner,
        "varied": {dimension.key: str(dimension) for dimension in space.dimensions},
        "runs": fixed,
    }

    if path.is_file():
        before = read_yaml(path)
        identity = before.pop("id", None)
        if type(identity) is not str:
            raise UserError(f"{path} is not what a sweep writes; move the folder away")
        for key, was, now in _differences(before, own):
            raise UserError(
                f"{folder} is a sweep with {key}={was}, got {now}; name=OTHER begins another sweep"
            )
        return identity

    if (folder / "journal.log").exists():
        raise UserError(f"{folder} has a journal but no sweep.yaml; move the folder away")
    identity = hashlib.sha256(os.urandom(16)).hexdigest()[:8]
    with replacing(path) as file:
        file.write(yaml.safe_dump({"id": identity} | own, sort_keys=False).encode())
    return identity


def _differences(before: Any, now: Any) -> list[tuple[str, Any, Any]]:
    """Dotted key, earlier and present value wherever two trees of mappings differ."""
    then = dict(items_of(before))
    present = dict(items_of(now))
    different = []
    for key in dict.fromkeys([*then, *present]):
        was = then.get(key)
        value = present.get(key)
        if was != value and not isinstance(was, dict) and not isinstance(value, dict):
            name = key.removeprefix("runs.").removeprefix("varied.")
            different.append((name, was, value))
    return different
