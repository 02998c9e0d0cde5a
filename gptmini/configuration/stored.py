"""The configuration by which a run is trained: what was typed, or what the run began with where it goes on.

A run that goes on is trained by the configuration in its folder. What is typed may change how it is computed and
watched, never what it has trained so far. A run folder may come from somebody else, so nothing that only the folder
names is called, written to or sent to.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.configuration.building import root_settings, run_name
from gptmini.configuration.compose import Composed
from gptmini.configuration.init_from import take_from_source
from gptmini.configuration.keys import PART_GROUPS, is_users_part
from gptmini.configuration.overrides import Typed, key_of
from gptmini.configuration.trust import check_parts
from gptmini.key_table import keys_with
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def resolved(composed: Composed) -> tuple[dict[str, Any], Typed]:
    """The configuration by which a new or a resumed run is trained, as plain values, and what was typed for it so far.

    What was composed is resolved and changed on the way.

    Returns that of the run which resume= or folder= names, as the typed keys change it; its key resume names the run.
    For a new run, the composed one with a name, and with the sizes and the tokenizer of init_from; so too for one that
    folder= names and that was killed before its first checkpoint, which begins again.
    Raises UserError: there is no such run, its configuration is damaged, of an earlier version or calls what no
    configuration here names, or a typed key would change what was trained so far.
    """
    from omegaconf import OmegaConf

    config, typed = composed
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"{missing[0]} must be given, as in {missing[0]}=VALUE")
    OmegaConf.resolve(config)
    root = root_settings(config)
    named = _run_to_go_on_with(root.resume, root.folder)
    if named is not None:
        config, typed = _stored_configuration(named, config, typed)
    else:
        if config.name is None:
            config.name = run_name(config, typed)
        take_from_source(config, typed)
    plain: Any = OmegaConf.to_container(config)
    return plain, typed


def _run_to_go_on_with(resume: str | None, folder: str | None) -> Path | None:
    """The run folder, or the checkpoint in one, that a run goes on with; None for a new run."""
    from gptmini.runs import has_checkpoint, is_run, named_run

    if resume is not None and folder is not None:
        raise UserError("resume= names the run to go on with, and folder= that too; leave out one")
    if resume is not None:
        # A run that begins meanwhile must not change which one is meant, so a folder of runs is looked into only once.
        return named_run(resume)
    if folder is None:
        return None
    # A run that was killed before its first checkpoint begins again, by what is typed now.
    place = Path(folder).expanduser()
    return place if is_run(place) and has_checkpoint(place) else None


def _stored_configuration(
    named: Path, config: "DictConfig", typed: Typed
) -> "tuple[DictConfig, Typed]":
    """The configuration that a run began with, changed by what is typed for this start."""
    from omegaconf import OmegaConf

    from gptmini.runs import find_run, read_config

    folder = find_run(named)
    tree, typed_before = read_config(folder, to_go_on=True)
    if "data" not in tree:  # an imported model
        raise UserError(
            f"{folder} has trained on no text yet; init_from={folder} begins a run with its weights"
        )
    for group in PART_GROUPS:
        # A part that was typed replaces the stored part of the same name whole, so that the file adds nothing to it.
        for name in list(tree.get(group) or {}):
            if is_users_part(f"{group}.{name}") and typed.has(f"{group}.{name}"):
                del tree[group][name]
    check_parts(tree, folder, config, typed)

    stored = OmegaConf.create(tree)
    for line in typed.overrides:
        key = key_of(line)
        is_part = is_users_part(".".join(key.split(".")[:2]))
        was_typed = line in typed_before and key not in keys_with("resumable") and not is_part
        if key not in keys_with("place") and not was_typed:
            _take(key, stored, config, folder, line)

    # Tokens are prepared, and texts downloaded, only where the command line or gptmini's own configuration says.
    stored.data_dir = config.data_dir
    if stored.data.get("folder") is not None:
        stored.data.folder = f"{config.data_dir}/downloads"
    stored.runs_dir = config.runs_dir
    stored.resume = str(folder if named.is_dir() else named)
    stored.folder = None
    return stored, replace(typed, before=typed_before)


def _take(key: str, stored: "DictConfig", config: "DictConfig", folder: Path, line: str) -> None:
    """Take a typed key into a stored configuration.

    Args:
        key: the key, or a group of which an option was chosen.
        stored: the run's configuration.
        config: the composed one, which has the value of the key.
        folder: of the run.
        line: the override as it was typed.

    Raises UserError: the run goes on, and the key would change its past.
    """
    from omegaconf import OmegaConf

    part = ".".join(key.split(".")[:2])
    if is_users_part(part):
        OmegaConf.update(stored, part, OmegaConf.select(config, part), merge=False, force_add=True)
        return

    new = OmegaConf.select(config, key)
    old = OmegaConf.select(stored, key)
    if new == old and key != "experiment":
        return
    if key not in keys_with("resumable"):
        raise UserError(
            f"{line} would change the past of {folder}; init_from={folder} begins a new run with its weights"
        )
    if key in keys_with("only_off") and new is not None:
        raise UserError(f"{key} can only be turned off in a run that goes on, with {key}=null")
    group = key.rpartition(".")[0]
    if group and OmegaConf.select(stored, group) is None:
        raise UserError(f"{folder} was begun without {group}, so it has no {key}")
    OmegaConf.update(stored, key, new, force_add=True)
