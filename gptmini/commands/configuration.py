"""Configurations: composed by Hydra and checked key by key, or read from the folder of a run to resume."""

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

PACKAGE = Path(__file__).resolve().parent.parent
CONFIGS = next(folder for folder in (PACKAGE / "configs", PACKAGE.parent / "configs") if folder.is_dir())
PART_GROUPS = ("callbacks", "logger")  # groups of parts by name, to which users add their own
HYDRA_GROUPS = ("hydra.launcher", "hydra.sweeper", "hydra.sweep", "hydra.job", "hydra.searchpath", "hydra.verbose")
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
MLFLOW_DATABASE = "sqlite:///mlflow.db"  # as in configs/logger/mlflow.yaml, where the environment names no other
ONLY_OFF = ("callbacks.samples", "callbacks.pictures")  # of these: null is the only value


def compose_checked(command: str, overrides: Sequence[str], config_dir: str | None = None) -> "DictConfig":
    """Compose a configuration from overrides, or read that of the run to resume.

    config_dir is a folder of a user's own that adds options to the groups.
    Raises UserError: a key that the chosen groups do not define, or a value that must be given and is not.
    """
    run = run_to_resume(overrides)
    if run is not None:
        return stored_config(run, overrides, config_dir)

    check_composed = check_overrides(command, overrides, config_dir)
    with _composer(config_dir) as compose:
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


def sweep_described(command: str, overrides: Sequence[str], config_dir: str | None = None) -> list[str]:
    """The sweep that the chosen configurations themselves describe, KEY=VALUES each, in hydra.sweeper.params."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    fixed = [override.input_line for override in parsed if not override.is_sweep_override()]
    with _composer(config_dir) as compose:
        sweeper = compose(command, fixed, return_hydra_config=True).hydra.sweeper
        return [f"{key}={values}" for key, values in (sweeper.get("params") or {}).items()]


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
        nodes = dict(_items(tree))
    except Exception as error:  # of whatever class: anything may stand in a file
        raise UserError(f"{path} is not the configuration that the run began with ({type(error).__name__})") from None
    check_version(version, folder)

    own_parts = _own_parts(parsed, config_dir)
    for key, value in own_parts.items():
        OmegaConf.update(config, key, value, merge=False, force_add=True)  # nothing is left of what the file says of it
    _check_calls(tree, path, config_dir, typed=own_parts)
    _check_loggers(tree, path, config_dir, typed=own_parts)
    computed = [value for value in nodes.values() if type(value) is str and "${" in value.replace("\\${", "")]
    if computed:
        raise UserError(f"{path} must hold plain values, got {computed[0]!r}")

    for override in parsed:
        key = override.key_or_group
        if _is_hydras(key) or _belongs(key, own_parts):
            continue
        _check_resumable(override, folder, nodes)
        OmegaConf.update(config, key, override.value())
    return config


def check_overrides(
    command: str, overrides: Sequence[str], config_dir: str | None = None
) -> "Callable[[DictConfig], None]":
    """Check the keys of overrides before anything is composed of them; returns the check of what is composed.

    Each key must be one that the chosen groups define, or belong to a part of the user's own.
    Raises UserError: another key, as does the check that is returned, or one for a value that must be given and is not.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    folders = _folders(config_dir)
    for override in parsed:
        is_group = _is_group(override.key_or_group, folders)
        if not override.key_or_group or (is_group and isinstance(override.value(), list)):
            raise UserError(f"{override.input_line} is no KEY=VALUE, and no GROUP=NAME")
    groups = [
        override.input_line
        for override in parsed
        if _is_group(override.key_or_group, folders) and not isinstance(override.value(), dict)
    ]

    with _composer(config_dir) as compose:
        known = set(_keys(OmegaConf.to_container(compose(command, groups))))
    own_parts = _own_parts(parsed, config_dir)
    for override in parsed:
        if override.input_line not in groups:
            _check_key(override, known, own_parts)

    def check_composed(config: "DictConfig") -> None:
        keys = _keys(OmegaConf.to_container(config))
        surplus = [key for key in keys if key not in known and not _belongs(key, own_parts)]
        if surplus:
            raise UserError(f"no configuration here has the key {surplus[0]}{_nearest(surplus[0], known)}")
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise UserError(f"{missing[0]} must be given, as in {missing[0]}=VALUE")

    return check_composed


def _check_key(override: "Override", known: set[str], own_parts: dict[str, Any]) -> None:
    """Raise UserError unless an override changes a value that is there, or adds a part of the user's own."""
    key = override.key_or_group
    if _is_hydras(key) or _belongs(key, own_parts):
        return
    if override.is_delete() and "." in key and not key.startswith("callbacks."):
        raise UserError(f"{key} must have a value; change it with {key}=VALUE")
    if key.endswith("_") or override.package is not None:
        raise UserError(f"{override.input_line} would change what a value is given to, which is fixed")
    if key not in known:
        raise UserError(f"no configuration here has the key {key}{_nearest(key, known)}")


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
    for folder in _folders(config_dir):
        known += [_calls_of(file, folder) for file in folder.rglob("*.yaml")]
    parts = {f"{group}.{name}" for group in PART_GROUPS for name, part in _parts(tree, group) if part is not None}
    parts |= {group.name for group in CONFIGS.iterdir() if group.is_dir() and group.name != "experiment"}
    parts -= {*PART_GROUPS}
    for part in parts | called.keys():
        if _belongs(part, typed) or any(part in other and other[part] == called.get(part) for other in known):
            continue
        is_own = part.partition(".")[0] in PART_GROUPS
        remedy = f"; if it is yours, type it again: +{part}=..., or +{part}=null to go on without it" if is_own else ""
        raise UserError(f"{path} names {called.get(part)} for {part}, which no configuration here does{remedy}")


def _check_loggers(tree: dict, path: Path, config_dir: str | None, *, typed: dict[str, Any]) -> None:
    """Raise UserError where a stored logger would write elsewhere than in its run, or send what it logs to a stranger.

    Its keys are those that a configuration here gives it, its folder is a plain name, and its server is the user's own.
    """
    from gptmini.run_folder import check_run_name

    for name, part in _parts(tree, "logger"):
        if part is None or _belongs(f"logger.{name}", typed):
            continue
        known = set()
        for folder in _folders(config_dir):
            for file in folder.glob("logger/*.yaml"):
                known |= set((_read_yaml(file).get(name) or {}).keys())
        for key in part.keys() - known:
            raise UserError(f"{path} gives logger.{name} the argument {key}, which no configuration here does")

    stored = dict(_parts(tree, "logger"))
    if stored.get("csv") is not None:
        check_run_name(stored["csv"].get("name"))
    if stored.get("mlflow") is not None:
        server = stored["mlflow"].get("tracking_uri")
        own = os.environ.get("MLFLOW_TRACKING_URI", MLFLOW_DATABASE)
        if server != own:
            raise UserError(f"{path} logs to {server!r}; if that is yours, set MLFLOW_TRACKING_URI to it (now {own})")


def _own_parts(parsed: "list[Override]", config_dir: str | None) -> dict[str, Any]:
    """Callbacks and loggers of a user's own that a command line adds with +, by key; null for one that it turns off.

    Only what was typed makes such a part, whatever a run folder says of it.
    Raises UserError: one without a class to make it of.
    """
    from omegaconf import OmegaConf

    ours = {f"{group}.{name}" for group in PART_GROUPS for name in _names_of_parts(group, config_dir)}
    typed = OmegaConf.create({group: {} for group in PART_GROUPS})
    added = {}
    for override in parsed:
        group, _, rest = override.key_or_group.partition(".")
        name = rest.partition(".")[0]
        part = f"{group}.{name}"
        is_added = override.is_add() or override.is_force_add()
        if is_added and group in PART_GROUPS and name and part not in ours:
            added[part] = override.input_line
            OmegaConf.update(typed, override.key_or_group, override.value(), force_add=True)

    parts = {}
    for part, line in added.items():
        value = OmegaConf.select(typed, part)
        if value is not None and not (OmegaConf.is_dict(value) and type(value.get("_target_")) is str):
            raise UserError(
                f"{line} belongs to no part that gptmini has{_nearest(part, ours)}; "
                f"a part of your own needs a class, as in +{part}._target_=lightning.pytorch.callbacks.EarlyStopping"
            )
        parts[part] = value
    return parts


def _belongs(key: str, parts: Iterable[str]) -> bool:
    """Whether a key is one of the parts, or lies in one."""
    return any(key == part or key.startswith(f"{part}.") for part in parts)


def _names_of_parts(group: str, config_dir: str | None) -> set[str]:
    """Names of the parts that the files of a group, or of an experiment, define."""
    names = set()
    for folder in _folders(config_dir):
        for file in folder.glob(f"{group}/*.yaml"):
            names |= {name for name in _read_yaml(file) if name != "defaults"}
        for file in folder.glob("experiment/*.yaml"):
            names |= {name for name, _ in _parts(_read_yaml(file), group)}
    return names


def _parts(tree: dict, group: str) -> list[tuple[str, Any]]:
    parts = tree.get(group)
    return list(parts.items()) if isinstance(parts, dict) else []


@contextmanager
def _composer(config_dir: str | None) -> Iterator[Callable[..., "DictConfig"]]:
    """Compose as Hydra would on the command line, whatever Hydra is doing in this process already."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    extra = [] if config_dir is None else [f"hydra.searchpath=[{_quoted(f'file://{Path(config_dir).resolve()}')}]"]
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            yield lambda name, overrides, **options: compose(name, [*overrides, *extra], **options)
    finally:
        GlobalHydra.instance().hydra = running


def _quoted(text: str) -> str:
    """Text as a value of Hydra's override grammar, whatever its characters."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _folders(config_dir: str | None) -> list[Path]:
    """Where configurations lie: those of gptmini, and a folder of the user's own."""
    return [CONFIGS] if config_dir is None else [CONFIGS, Path(config_dir)]


def _is_group(key: str, folders: list[Path]) -> bool:
    """Whether a key names a group of options, one of Hydra's own included, as hydra/launcher."""
    return key.startswith("hydra/") or any((folder / key).is_dir() for folder in folders if key)


def _is_hydras(key: str) -> bool:
    """Whether a key is one of Hydra's that may be changed; where it runs and what it writes is ours to say."""
    return key.startswith("hydra/") or _belongs(key, HYDRA_GROUPS)


def _read_yaml(file: Path) -> dict:
    """What a configuration file holds; nothing for one that is empty or holds something else than keys."""
    import yaml

    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    return tree if isinstance(tree, dict) else {}


def _calls_of(file: Path, folder: Path) -> dict[str, dict]:
    group = "" if file.parent == folder else file.parent.relative_to(folder).as_posix()
    return _called(_read_yaml(file), group)


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
    if isinstance(tree, dict):
        entries = tree.items()
    elif isinstance(tree, list):
        entries = enumerate(tree)
    else:
        return
    for name, value in entries:
        yield f"{prefix}{name}", value
        yield from _items(value, f"{prefix}{name}.")


def _keys(tree: dict) -> list[str]:
    """Names of a configuration's nodes; a list may be of any length."""
    return [key for key, _ in _items(tree) if not key.rpartition(".")[2].isdigit()]


def _nearest(key: str, known: Iterable[str]) -> str:
    """The known key that a mistaken one was probably meant to be, as the end of a sentence."""
    settable = sorted(name for name in known if not name.endswith("_"))  # not Hydra's own _target_ and _partial_
    by_last_name = {name.rpartition(".")[2]: name for name in settable}
    close = difflib.get_close_matches(key, settable, n=1)
    if not close:
        close = [by_last_name[name] for name in difflib.get_close_matches(key.rpartition(".")[2], by_last_name, n=1)]
    return f"; the nearest is {close[0]}" if close else "; --help lists them"
