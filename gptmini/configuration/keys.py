"""Which keys and options there are, read from the YAML files of gptmini and of the user's own folder."""

import difflib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from gptmini.configuration.overrides import Typed, key_of
from gptmini.files import CONFIGS
from gptmini.untrusted import nodes, read_yaml
from gptmini.user_error import UserError

# Keys beside _target_ by which Hydra makes an object, and the type of each value.
HYDRAS_KEYS = {"_args_": list, "_convert_": str, "_partial_": bool, "_recursive_": bool}
COMPOSED = ("train", "prepare", "sweep")  # commands that Hydra composes a configuration for
# Groups whose members are parts by name, to which a user adds parts of their own with +GROUP.NAME.
PART_GROUPS = ("callbacks", "logger")


def root_keys(command: str) -> set[str]:
    """The keys that stand at the root of a command's configuration, its groups among them."""
    tree = read_yaml(CONFIGS / f"{command}.yaml", trusted=True)
    keys = tree.keys() - {"defaults", "hydra"}
    for entry in tree["defaults"]:
        if isinstance(entry, dict):
            keys |= {name for name in entry if not name.startswith("override ")}
        elif entry != "_self_":
            keys |= root_keys(entry)
    return keys - {"experiment"}


@cache
def known_keys() -> dict[str, list[str]]:
    """The options that have each key of gptmini's own configurations; an option is the name of a file in a group."""
    options: dict[str, list[str]] = {}
    for file in sorted(CONFIGS.rglob("*.yaml")):
        group = file.parent.relative_to(CONFIGS).as_posix()
        prefix = "" if group in (".", "experiment") else f"{group}."
        for key in _keys_of(read_yaml(file, trusted=True), prefix):
            # What a sweep varies are keys of gptmini train, under their own names.
            if key.startswith("sweep.params."):
                continue
            options.setdefault(key, [])
            if prefix:
                options[key].append(file.stem)
    return options


def is_users_part(part: str) -> bool:
    """Whether a key names a callback or a logger that no configuration of gptmini's has."""
    group, _, name = part.partition(".")
    return group in PART_GROUPS and bool(name) and part not in known_keys()


def check_hydras_keys(tree: object, place: str = "") -> None:
    """Raise UserError for a key of Hydra's own in a part that gptmini makes, or for one with a value of another type.

    A callback or a logger of the user's own may have any of these keys. The loggers of gptmini's configurations have
    _partial_, because a run completes them.

    Args:
        tree: a configuration as plain values.
        place: what an error message begins with, such as the name of a file.
    """
    for keys, value in nodes(tree):
        if keys[-1] not in HYDRAS_KEYS:
            continue
        key = ".".join(map(str, keys))
        wanted = HYDRAS_KEYS[keys[-1]]
        if is_users_part(".".join(map(str, keys[:2]))):
            is_open = isinstance(value, str) and "${" in value  # filled in later
            if type(value) is not wanted and not is_open:
                raise UserError(f"{place}{key} must be a {wanted.__name__}, got {value!r}")
        elif keys[0] == "logger" and keys[2:] == ("_partial_",):
            if value is not True:
                raise UserError(f"{place}{key} must be true, got {value!r}")
        else:
            raise UserError(f"{place}{key} is a key of Hydra's own, got {value!r}; remove it")


def no_key(key: str) -> str:
    """The message for a key that no configuration has: it names the nearest one, or the options that have the key."""
    options = known_keys()
    group = key.partition(".")[0]
    if key in options:
        having = [f"{group}={option}" for option in options[key]]
        if not having or group == "sweep":
            having = [f"gptmini {command}" for command in COMPOSED if group in root_keys(command)]
            having = having[:1]  # gptmini prepare takes the keys of train too
        return f"{key} is no key here; {' and '.join(having)} {'has' if len(having) == 1 else 'have'} it"

    close = difflib.get_close_matches(key, options, n=1)
    if not close:
        # The last name of a key is often right where its group was forgotten, as in max_steps for trainer.max_steps.
        by_last_name = {known.rpartition(".")[2]: known for known in options}
        last = difflib.get_close_matches(key.rpartition(".")[2], by_last_name, n=1)
        close = [by_last_name[name] for name in last]
    if not close:
        return f"{key} is no key; --help lists them"
    return f"{key} is no key; the nearest is {close[0]}"


def no_root_key(key: str) -> str:
    """The message for a key at the root that the root configuration does not have."""
    if key == "experiment":
        return "an experiment must begin with the line # @package _global_, without which its keys lie in experiment"
    group, dot, name = key.partition(".")
    if dot:
        return f"{key} must be written as {group}: {{{name}: ...}} in a file"
    return no_key(key)


def chosen_by_experiment(typed: Typed) -> set[str]:
    """The keys that the chosen experiment gives a value, and the groups of which it chooses an option."""
    chosen = set()
    for file in chain_of("experiment", typed.choices.get("experiment"), typed.config_dir):
        tree = read_yaml(file, trusted=True)
        keys = set(_keys_of(tree, ""))
        chosen |= {key for key in keys if not any(other.startswith(f"{key}.") for other in keys)}
        for entry in tree.get("defaults", []):
            if isinstance(entry, dict):
                chosen |= {name.removeprefix("override ").removeprefix("/") for name in entry}
    return chosen


def chain_of(group: str, option: str | None, config_dir: str | None) -> Iterator[Path]:
    """The file of an option, after the files of the options that it begins from."""
    for file in files_of_group(group, config_dir):
        if file.stem != option:
            continue
        for entry in read_yaml(file, trusted=True).get("defaults", []):
            is_option = isinstance(entry, str) and entry != "_self_"
            if is_option:
                yield from chain_of(group, entry, config_dir)
        yield file
        return


def files_of_group(group: str, config_dir: str | None) -> Iterator[Path]:
    """The files of a group, of gptmini and of the user's own folder."""
    folders = [CONFIGS] if config_dir is None else [CONFIGS, Path(config_dir)]
    for folder in folders:
        yield from folder.glob(f"{group}/*.yaml")


def _keys_of(tree: object, prefix: str) -> Iterator[str]:
    """The dotted names of all keys of a tree that a user may type."""
    if not isinstance(tree, dict):
        return
    for name, value in tree.items():
        if name not in ("defaults", "hydra") and not str(name).endswith("_"):
            yield f"{prefix}{name}"
            yield from _keys_of(value, f"{prefix}{name}.")


def asks_for(key: str, typed: Typed) -> bool:
    """Whether a key of the model or the tokenizer was asked for: typed, or set by an experiment; no mere default."""
    group = key.partition(".")[0]
    if typed.has(key) or f"{group}={typed.choices[group]}" in typed.overrides:
        return True
    return any(
        chosen == group or key == chosen or chosen.startswith(f"{key}.")
        for chosen in chosen_by_experiment(typed)
    )


def parts_of_users(overrides: Sequence[str]) -> list[str]:
    """The overrides that add callbacks and loggers of the user's own, which must be typed again to go on."""
    return [line for line in overrides if is_users_part(".".join(key_of(line).split(".")[:2]))]
