"""The configuration that a run folder keeps: what a resumed run takes of it, and of what is typed beside it.

A run folder may come from a stranger, so nothing that only the folder names is called, written to or sent to.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError
from gptmini.commands.configuration import (
    CONFIGS,
    PART_GROUPS,
    belongs,
    folders_of,
    is_hydras,
    items_of,
    names_of_parts,
    own_parts_of,
    parts_of,
    read_yaml,
)

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

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
ONLY_OFF = ("callbacks.samples", "callbacks.pictures")  # of these: null is the only value
LIVE = re.compile(r"(?<!\\)(?:\\\\)*\$\{")  # an interpolation that no backslash turns into text


def stored_config(run: str, overrides: Sequence[str], config_dir: str | None = None) -> "DictConfig":
    """The configuration of a run, with what may change when it is resumed.

    Raises UserError: no run, a file that is not its configuration, one of an earlier version, one that names what no
    configuration here names, or an override that would change the past.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from gptmini.run_folder import check_version, find_run, read_config

    folder = find_run(run)
    path = folder / "config.yaml"
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    try:
        config = OmegaConf.create(read_config(folder))
        version = config.pop("version", None)
        tree = OmegaConf.to_container(config)
        nodes = dict(items_of(tree))
    except Exception as error:  # of whatever class: anything may stand in a file
        raise UserError(f"{path} is not the configuration that the run began with ({type(error).__name__})") from None
    check_version(version, folder)
    _check_plain(tree, nodes, path)

    own_parts = own_parts_of(parsed, config_dir)
    for key, value in own_parts.items():
        OmegaConf.update(config, key, value, merge=False, force_add=True)  # nothing is left of what the file says of it
    _check_calls(tree, path, config_dir, typed=own_parts)
    _check_loggers(tree, path, config_dir, typed=own_parts)

    for override in parsed:
        key = override.key_or_group
        if is_hydras(key) or belongs(key, own_parts):
            continue
        _check_resumable(override, folder, nodes)
        OmegaConf.update(config, key, override.value())
    return config


def _check_plain(tree: dict, nodes: dict[str, Any], path: Path) -> None:
    """Raise UserError unless every key of a stored configuration is a name, and no value is computed when it is read.

    A key with a dot in it would look like a key of a part that it does not belong to.
    """
    for group in PART_GROUPS:
        if not isinstance(tree.get(group), dict | None):
            raise UserError(f"{path} must hold {group} by name, or null, got {tree[group]!r}")
    for key in _every_key(tree):
        if type(key) is not str or "." in key:
            raise UserError(f"{path} must have names without dots for keys, got {key!r}")
    for value in nodes.values():
        if type(value) is str and LIVE.search(value):
            raise UserError(f"{path} must hold plain values, got {value!r}")


def _every_key(tree: object) -> Iterator[object]:
    """Every key of every mapping in a tree of mappings and lists."""
    if isinstance(tree, dict):
        yield from tree
        parts = list(tree.values())
    else:
        parts = tree if isinstance(tree, list) else []
    for part in parts:
        yield from _every_key(part)


def _check_resumable(override: "Override", folder: Path, nodes: dict[str, Any]) -> None:
    """Raise UserError unless a resumed run may take an override; nodes are those of its own configuration."""
    key = override.key_or_group
    if key != "resume" and (key not in RESUMABLE or override.is_delete() or override.is_add()):
        raise UserError(
            f"{override.input_line} would change the past of {folder}; a resumed run takes only {', '.join(RESUMABLE)}"
        )
    if key in ONLY_OFF and override.value() is not None:
        raise UserError(f"{key} can only be turned off in a resumed run, with {key}=null, got {override.input_line}")
    if override.is_sweep_override():
        raise UserError(f"{override.input_line} is a sweep, which needs -m")
    if key not in ("resume", *nodes):
        raise UserError(f"{folder} was begun without {key.rpartition('.')[0]}, so it has no {key}")


def _check_calls(tree: dict, path: Path, config_dir: str | None, *, typed: dict[str, Any]) -> None:
    """Raise UserError unless everything that Hydra would import and call for a stored configuration is known.

    Known is what a configuration of gptmini or of the user's own folder names for the same part, and what was typed.
    """
    called = _called(tree)
    known = []
    for folder in folders_of(config_dir):
        known += [_calls_of(file, folder) for file in folder.rglob("*.yaml")]
    parts = {f"{group}.{name}" for group in PART_GROUPS for name, part in parts_of(tree, group) if part is not None}
    parts |= {group.name for group in CONFIGS.iterdir() if group.is_dir() and group.name != "experiment"}
    parts -= {*PART_GROUPS}
    for part in parts | called.keys():
        if belongs(part, typed) or any(part in other and other[part] == called.get(part) for other in known):
            continue
        group, _, rest = part.partition(".")
        name = rest.partition(".")[0]
        is_own = group in PART_GROUPS and name not in names_of_parts(group, config_dir)
        own = f"+{group}.{name}"
        remedy = ""
        if is_own:
            remedy = f"; if it is yours, type {own}=... or its --config-dir again, or {own}=null to go on without it"
        raise UserError(f"{path} names {called.get(part)} for {part}, which no configuration here does{remedy}")


def _check_loggers(tree: dict, path: Path, config_dir: str | None, *, typed: dict[str, Any]) -> None:
    """Raise UserError where a stored logger would write elsewhere than in its run, or send what it logs to a stranger.

    Its keys are those that a configuration here gives it, its folder is a plain name, and its server is the user's own.
    """
    from omegaconf import OmegaConf

    from gptmini.run_folder import check_run_name

    for name, part in parts_of(tree, "logger"):
        if part is None or belongs(f"logger.{name}", typed):
            continue
        known: set[str] = set()
        for folder in folders_of(config_dir):
            found = [read_yaml(file) for file in folder.glob("logger/*.yaml")]
            found += [dict(parts_of(read_yaml(file), "logger")) for file in folder.glob("experiment/*.yaml")]
            for loggers in found:
                defined = loggers.get(name)
                known |= set(defined) if isinstance(defined, dict) else set()
        for key in part.keys() - known:
            raise UserError(f"{path} gives logger.{name} the argument {key}, which no configuration here does")

    stored = dict(parts_of(tree, "logger"))
    if stored.get("csv") is not None:
        check_run_name(stored["csv"].get("name"))
    if stored.get("mlflow") is not None:
        server = stored["mlflow"].get("tracking_uri")
        own = OmegaConf.create(read_yaml(CONFIGS / "logger" / "mlflow.yaml")).mlflow.tracking_uri
        if server != own:
            raise UserError(f"{path} logs to {server!r}; if that is yours, set MLFLOW_TRACKING_URI to it (now {own})")


def _calls_of(file: Path, folder: Path) -> dict[str, dict]:
    group = "" if file.parent == folder else file.parent.relative_to(folder).as_posix()
    return _called(read_yaml(file), group)


def _called(tree: dict, group: str = "") -> dict[str, dict]:
    """For each part of a configuration what Hydra calls for it: its keys that begin and end with an underscore."""
    prefix = "" if group in ("", "experiment") else f"{group}."
    called: dict[str, dict] = {}
    for key, value in items_of(tree, prefix):
        part, _, name = key.rpartition(".")
        if name.endswith("_"):
            called.setdefault(part, {})[name] = value
    return called
