"""Configurations: composed by Hydra, and checked before anything starts."""

import difflib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gptmini.commands.errors import one_line_errors

CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"
RESUMABLE = (  # what a resumed run takes from its command line: how it is computed and watched, never what
    "trainer.max_steps",
    "trainer.max_time",
    "trainer.max_bad_steps",
    "trainer.val_every_steps",
    "trainer.batch_size",
    "trainer.device",
    "trainer.devices",
    "trainer.compile",
    "trainer.threads",
    "callbacks.scalars.every_steps",
    "callbacks.scalars.peak_tflops",
    "callbacks.checkpoints.every_steps",
    "callbacks.samples",
    "callbacks.pictures",
    "console",
)


def run_configured(config_name: str, task: Callable, check: Callable | None = None) -> None:
    """Run task(config) for the overrides on the command line, once for each job of a sweep (-m).

    Hydra composes and makes nothing; a key that no YAML of the chosen groups defines is refused, with the nearest.
    Every job of a sweep is composed, and given to check, before the first one starts.
    """
    arguments = sys.argv[1:]
    multirun = [argument for argument in arguments if argument in ("-m", "--multirun")]
    overrides = [argument for argument in arguments if argument not in multirun]
    with one_line_errors():
        if any(argument.startswith("-") for argument in overrides):
            _hydra_main(config_name, task)  # --help, --cfg, --info and their kin are Hydra's
            return
        jobs = list(_expand(overrides)) if multirun else [overrides]
        configs = [compose_checked(config_name, job) for job in jobs]
        for config in configs if multirun and check else ():
            check(config)
        for i, (job, config) in enumerate(zip(jobs, configs, strict=True), start=1):
            sys.argv[1:] = job  # what a further process of this job is started with
            if multirun:
                print(f"job {i} of {len(jobs)}: {' '.join(job)}", flush=True)
            if multirun and config.get("trainer", {}).get("devices", 1) > 1:
                # Lightning and torch keep rank, port and process group until the process ends.
                if code := subprocess.run([sys.executable, sys.argv[0], *job], check=False).returncode:
                    sys.exit(code)
            else:
                task(config)


def compose_checked(config_name: str, overrides: list[str]):
    """Compose a configuration from overrides.

    Raises ValueError: a key that the chosen groups do not define, or a value that must be given and is not.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    parsed = OverridesParser.create().parse_overrides(overrides)
    resume = [override.value() for override in parsed if override.key_or_group == "resume" and not override.is_delete()]
    if resume and resume[-1] is not None:
        return _stored_config(str(resume[-1]), parsed)
    for override in parsed:
        is_group = override.key_or_group and (CONFIGS / override.key_or_group).is_dir()
        if not override.key_or_group or (is_group and isinstance(override.value(), list)):
            raise ValueError(f"{override.input_line} is no KEY=VALUE, and no GROUP=NAME")
    groups = [
        override.input_line
        for override in parsed
        if (CONFIGS / override.key_or_group).is_dir() and not isinstance(override.value(), dict)
    ]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        known = _keys(OmegaConf.to_container(compose(config_name, groups)))
        for override in parsed:
            key = override.key_or_group
            if override.is_delete() and "." in key and not key.startswith("callbacks."):
                raise ValueError(f"{key} must have a value; change it with {key}=VALUE")
            if key.endswith("_") or override.package is not None:
                raise ValueError(f"{override.input_line} would change what a value is given to, which is fixed")
            if override.input_line not in groups and key not in known:
                raise ValueError(f"no configuration here has the key {key}{_nearest(key, known)}")
        config = compose(config_name, overrides)
    surplus = [key for key in _keys(OmegaConf.to_container(config)) if key not in known]
    if surplus:
        raise ValueError(f"no configuration here has the key {surplus[0]}{_nearest(surplus[0], known)}")
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise ValueError(f"{missing[0]} must be given, as in {missing[0]}=VALUE")
    return config


def _stored_config(run: str, parsed: list):
    """The configuration of a run, with what may change when it is resumed.

    Raises ValueError: no run, a file that is not its configuration, or an override that would change the past.
    """
    import yaml
    from omegaconf import OmegaConf

    from gptmini.run_folder import find_run, read_config

    path = find_run(run) / "config.yaml"
    try:
        config = OmegaConf.create(read_config(path.parent))
        tree = OmegaConf.to_container(config)
        keys, values = zip(*_items(tree), strict=True)
        parts = {f"callbacks.{name}" for name, value in (tree["callbacks"] or {}).items() if value is not None}
    except Exception as error:  # of whatever class: anything may stand in a file
        raise ValueError(f"{path} is not the configuration that the run began with ({type(error).__name__})") from None
    called = _called(tree)
    known = [
        _called(yaml.safe_load(file.read_text(encoding="utf-8")), "" if file.parent == CONFIGS else file.parent.name)
        for file in CONFIGS.rglob("*.yaml")
    ]
    parts |= {group.name for group in CONFIGS.iterdir() if group.is_dir() and group.name != "experiment"}
    for part in parts | called.keys():  # what Hydra would import and call
        if not any(part in other and other[part] == called.get(part) for other in known):
            raise ValueError(f"{path} names {called.get(part)} for {part}, which no configuration here does")
    if computed := [value for value in values if type(value) is str and "${" in value.replace("\\${", "")]:
        raise ValueError(f"{path} must hold plain values, got {computed[0]!r}")
    for override in parsed:
        key = override.key_or_group
        if key != "resume" and (key not in RESUMABLE or override.is_delete() or override.is_add()):
            raise ValueError(
                f"{override.input_line} would change the past of {path.parent}; a resumed run takes only "
                f"{', '.join(RESUMABLE)}"
            )
        if key in ("callbacks.samples", "callbacks.pictures") and override.value() is not None:
            raise ValueError(
                f"{key} can only be turned off in a resumed run, with {key}=null, got {override.input_line}"
            )
        if override.is_sweep_override():
            raise ValueError(f"{override.input_line} is a sweep, which needs -m")
        if key not in ("resume", *keys):
            raise ValueError(f"{path.parent} was begun without {key.rpartition('.')[0]}, so it has no {key}")
        OmegaConf.update(config, key, override.value())
    return config


def _called(tree: dict, group: str = "") -> dict[str, dict]:
    """For each part of a configuration what Hydra calls for it: its keys that begin and end with an underscore."""
    prefix = "" if group in ("", "experiment") else f"{group}."
    called: dict[str, dict] = {}
    for key, value in _items(tree, prefix):
        part, _, name = key.rpartition(".")
        if name.endswith("_"):
            called.setdefault(part, {})[name] = value
    return called


def _items(tree: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted name and value of every node of a configuration."""
    for name, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield f"{prefix}{name}", value
        yield from _items(value, f"{prefix}{name}.")


def _keys(tree: dict) -> list[str]:
    """Names of a configuration's nodes; a list may be of any length."""
    return [key for key, _ in _items(tree) if not key.rpartition(".")[2].isdigit()]


def _nearest(key: str, known: list[str]) -> str:
    settable = [name for name in known if not name.endswith("_")]  # not Hydra's own _target_ and _partial_
    by_last_name = {name.rpartition(".")[2]: name for name in settable}
    close = difflib.get_close_matches(key, settable, n=1) or [
        by_last_name[name] for name in difflib.get_close_matches(key.rpartition(".")[2], by_last_name, n=1)
    ]
    return f"; the nearest is {close[0]}" if close else "; --help lists them"


def _expand(overrides: list[str]) -> Iterator[list[str]]:
    """Every combination of a sweep's values: a=1,2 b=3 gives [a=1, b=3] and [a=2, b=3]."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    choices = []
    for override in OverridesParser.create().parse_overrides(overrides):
        if override.is_sweep_override():
            choices.append([f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([override.input_line])
    return (list(job) for job in itertools.product(*choices))


def _hydra_main(config_name: str, task: Callable) -> None:
    import hydra

    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise to us, instead of printing several lines
    hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=config_name)(task)()
