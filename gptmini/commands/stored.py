"""The configuration that a run folder keeps: what a resumed run takes from it, and from the command line.

A run folder may come from a stranger, so nothing that only the folder names is called, written to or sent to.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.commands.configuration import (
    CONFIGS,
    folders_of,
    items_of,
    parse_overrides,
    plain_tree,
    read_if_yaml,
    read_yaml,
)
from gptmini.commands.keys import (
    PART_GROUPS,
    WITHOUT_CALLS,
    belongs,
    is_hydras,
    names_of_parts,
    own_parts_of,
    parts_of,
)
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

# Keys that may change when a run is resumed. They say how the run is computed and watched, never what is trained.
RESUMABLE = (
    "trainer.max_steps",
    "trainer.max_time",
    "trainer.max_bad_steps",
    "trainer.val_every_steps",
    "trainer.batch_size",
    "trainer.device",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
    "trainer.checkpoint_activations",
    "trainer.timeout",
    "trainer.compile",
    "trainer.threads",
    "data_dir",
    "num_workers",
    "callbacks.scalars.every_steps",
    "callbacks.scalars.peak_tflops",
    "callbacks.checkpoints.every_steps",
    "callbacks.checkpoints.shards_above",
    "callbacks.samples",
    "callbacks.pictures",
    "console",
)

AUTO = "auto"  # the value of resume that stands for the run which this job has begun
# Resumable keys whose only new value is null, which turns the callback off.
ONLY_OFF = ("callbacks.samples", "callbacks.pictures")


def run_to_resume(command: str, overrides: Sequence[str]) -> str | None:
    """The run folder or checkpoint that overrides name after resume=; None if they begin a new run.

    Only the command train resumes runs. For another command resume= is a key that no configuration has.
    """
    if command != "train":
        return None

    run = None
    for override in parse_overrides(overrides):
        if override.key_or_group == "resume" and not override.is_delete():
            run = override.value()
    # Where resume=auto has found the run of an earlier start, it is replaced by that run before; else a run begins.
    return None if run in (None, AUTO) else str(run)


def stored_config(
    run: str, overrides: Sequence[str], config_dir: str | None = None
) -> "DictConfig":
    """The configuration that a run began with, changed by the overrides of the command that resumes the run.

    Args:
        run: a run folder, or a checkpoint file in one.
        overrides: what was typed, KEY=VALUE each.
        config_dir: a folder of the user's own that adds options to the groups.

    Raises UserError: there is no such run, its file is damaged or of an earlier version, the file names a class that no
    configuration names, or an override would change what was trained so far.
    """
    from omegaconf import DictConfig, OmegaConf

    from gptmini.run_folder import check_version, find_run, named_run, read_config

    if not run:
        raise UserError("resume must name a run folder or a .ckpt file in one, got an empty name")
    # A run that begins meanwhile must not change which one is meant, so a folder of runs is looked into only once.
    named = named_run(run)
    folder = find_run(named)
    path = folder / "config.yaml"
    parsed = parse_overrides(overrides)

    # A damaged or hostile file can make YAML and OmegaConf raise an error of any class.
    try:
        config = OmegaConf.create(read_config(folder))
        if not isinstance(config, DictConfig):
            raise TypeError("a configuration is a mapping")
        version = config.pop("version", None)
        tree = plain_tree(config)
        nodes = dict(items_of(tree))
    except Exception as error:
        kind = type(error).__name__
        raise UserError(
            f"{path} is not the configuration that the run began with ({kind})"
        ) from None
    check_version(version, folder)
    _check_plain(tree, nodes, path)

    # A part that was typed replaces the stored part of the same name whole, so that the file adds nothing to it.
    own_parts = own_parts_of(parsed, config_dir)
    for key, value in own_parts.items():
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    _check_calls(tree, path, config_dir, own_parts=own_parts)
    _check_loggers(tree, path, config_dir, own_parts=own_parts)

    for override in parsed:
        key = override.key_or_group
        if not is_hydras(key) and not belongs(key, own_parts):
            _check_resumable(override, folder, nodes)
            OmegaConf.update(config, key, override.value())
    _move_downloads(config, nodes)
    config.resume = str(folder if named.is_dir() else named)
    return config


def _check_plain(tree: dict, nodes: dict[str, Any], path: Path) -> None:
    """Raise UserError unless every key of a stored configuration is a name without dots, and every value is plain.

    A key with a dot in it would look like a key of another part. An interpolation would be computed when it is read:
    ${oc.env:NAME} reads a variable of the environment. A backslash before it turns it into text only once, and Hydra
    reads a configuration twice.
    """
    for group in PART_GROUPS:
        if not isinstance(tree.get(group), dict | None):
            raise UserError(f"{path} must hold {group} by name, or null, got {tree[group]!r}")
    for key in _every_key(tree):
        if type(key) is not str or "." in key:
            raise UserError(f"{path} must have names without dots for keys, got {key!r}")
    for value in nodes.values():
        if type(value) is str and "${" in value:
            raise UserError(f"{path} must hold plain values, got {value!r}")


def _every_key(tree: object) -> Iterator[object]:
    """Every key of every mapping in a tree of mappings and lists."""
    if isinstance(tree, dict):
        yield from tree
        branches = tree.values()
    elif isinstance(tree, list):
        branches = tree
    else:
        return

    for branch in branches:
        yield from _every_key(branch)


def _move_downloads(config: "DictConfig", nodes: dict[str, Any]) -> None:
    """Where another data_dir was typed, let the folder of downloads that lay in the old data_dir lie in the new one.

    nodes are those of the stored configuration, by their dotted names.
    """
    before = nodes.get("data_dir")
    folder = nodes.get("data.folder")
    lay_inside = type(folder) is str and folder.startswith(f"{before}/")
    if lay_inside and config.data_dir != before:
        config.data.folder = f"{config.data_dir}/{folder.removeprefix(f'{before}/')}"


def _check_resumable(override: "Override", folder: Path, nodes: dict[str, Any]) -> None:
    """Raise UserError unless a resumed run may take an override.

    nodes are those of the stored configuration, by their dotted names.
    """
    key = override.key_or_group
    if key != "resume":
        changes_a_value = not override.is_delete() and not override.is_add()
        if key not in RESUMABLE or not changes_a_value:
            raise UserError(
                f"{override.input_line} would change the past of {folder}; "
                f"a resumed run takes only {', '.join(RESUMABLE)}"
            )

    if key in ONLY_OFF and override.value() is not None:
        raise UserError(
            f"{key} can only be turned off in a resumed run, with {key}=null, "
            f"got {override.input_line}"
        )
    if override.is_sweep_override():
        raise UserError(f"{override.input_line} is a sweep, which needs -m")
    # A run of an earlier version lacks the newer settings of the trainer, which have defaults.
    is_known = key in nodes or key.startswith("trainer.")
    if key != "resume" and not is_known:
        group = key.rpartition(".")[0]
        raise UserError(f"{folder} was begun without {group}, so it has no {key}")


def _check_calls(
    tree: dict, path: Path, config_dir: str | None, *, own_parts: dict[str, Any]
) -> None:
    """Raise UserError unless all that Hydra would import and call for a stored configuration is known.

    A call is known if a configuration file of gptmini or of the user's own folder names the same call for the same
    part.

    Args:
        tree: the stored configuration.
        path: its file, for the error message.
        config_dir: a folder of the user's own that adds options to the groups.
        own_parts: the parts that the user typed, by key; they are not checked.
    """
    called = _calls_in(tree)
    known = _known_calls(config_dir)
    for part in _parts_to_call(tree) | called.keys():
        if belongs(part, own_parts):
            continue

        call = called.get(part)
        is_known = any(part in calls and calls[part] == call for calls in known)
        if not is_known:
            # A file that cannot be read may be the one that names the call.
            _check_all_readable(config_dir)
            remedy = _remedy_for_own_part(part, config_dir)
            raise UserError(
                f"{path} names {call} for {part}, which no configuration here does{remedy}"
            )


def _known_calls(config_dir: str | None) -> list[dict[str, dict]]:
    """The calls of every configuration file, of gptmini and of the user, as _calls_in gives them."""
    known = []
    for folder in folders_of(config_dir):
        for file in folder.rglob("*.yaml"):
            group = file.parent.relative_to(folder).as_posix()
            # The keys of a root configuration and of an experiment begin at the root; those of a group lie below it.
            prefix = "" if group in (".", "experiment") else f"{group}."
            known.append(_calls_in(read_if_yaml(file), prefix))
    return known


def _check_all_readable(config_dir: str | None) -> None:
    """Raise UserError unless every configuration file, of gptmini and of the user, can be read."""
    for folder in folders_of(config_dir):
        for file in folder.rglob("*.yaml"):
            read_yaml(file)


def _calls_in(tree: dict, prefix: str = "") -> dict[str, dict]:
    """What Hydra calls for each part of a configuration: the part's keys that end with an underscore, as _target_.

    prefix begins the dotted name of every part of the tree.
    """
    calls: dict[str, dict] = {}
    for key, value in items_of(tree, prefix):
        part, _, name = key.rpartition(".")
        if name.endswith("_"):
            calls.setdefault(part, {})[name] = value
    return calls


def _parts_to_call(tree: dict) -> set[str]:
    """The parts for which a run calls something: every group, and every callback and logger that is not null.

    These must have a call in the stored configuration, even where the file was changed to hold none.
    """
    parts = set()
    for folder in CONFIGS.iterdir():
        if folder.is_dir() and folder.name not in (*WITHOUT_CALLS, *PART_GROUPS):
            parts.add(folder.name)
    for group in PART_GROUPS:
        for name, part in parts_of(tree, group).items():
            if part is not None:
                parts.add(f"{group}.{name}")
    return parts


def _remedy_for_own_part(part: str, config_dir: str | None) -> str:
    """The end of an error message: how to go on with a part that the user had added; empty for a part of gptmini."""
    group, _, rest = part.partition(".")
    name = rest.partition(".")[0]
    is_own = group in PART_GROUPS and name not in names_of_parts(group, config_dir)
    if not is_own:
        return ""

    own = f"+{group}.{name}"
    return (
        f"; if it is yours, type {own}=... or its --config-dir again, "
        f"or {own}=null to go on without it"
    )


def _check_loggers(
    tree: dict, path: Path, config_dir: str | None, *, own_parts: dict[str, Any]
) -> None:
    """Raise UserError where a stored logger would write outside its run, or send what it logs to a stranger.

    A stored logger may have only the arguments that a configuration file gives it, its folder must be a plain name, and
    its server must be the user's own.

    Args:
        tree: the stored configuration.
        path: its file, for the error message.
        config_dir: a folder of the user's own that adds options to the groups.
        own_parts: the parts that the user typed, by key; they are not checked.
    """
    from omegaconf import OmegaConf

    from gptmini.run_folder import check_run_name

    stored = parts_of(tree, "logger")
    for name, part in stored.items():
        if part is None or belongs(f"logger.{name}", own_parts):
            continue
        for key in part.keys() - _known_arguments(name, config_dir):
            raise UserError(
                f"{path} gives logger.{name} the argument {key}, which no configuration here does"
            )

    if stored.get("csv") is not None:
        check_run_name(stored["csv"].get("name"))

    if stored.get("mlflow") is not None:
        server = stored["mlflow"].get("tracking_uri")
        own = OmegaConf.create(read_yaml(CONFIGS / "logger" / "mlflow.yaml")).mlflow.tracking_uri
        if server != own:
            raise UserError(
                f"{path} logs to {server!r}; "
                f"if that is yours, set MLFLOW_TRACKING_URI to it (now {own})"
            )


def _known_arguments(name: str, config_dir: str | None) -> set[str]:
    """The keys that any configuration file gives the logger of a name."""
    keys = set()
    for folder in folders_of(config_dir):
        groups = [read_if_yaml(file) for file in folder.glob("logger/*.yaml")]
        for file in folder.glob("experiment/*.yaml"):
            groups.append(parts_of(read_if_yaml(file), "logger"))
        for loggers in groups:
            defined = loggers.get(name)
            if isinstance(defined, dict):
                keys.update(defined)
    return keys
