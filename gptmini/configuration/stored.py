"""Resolve the configuration of a run.

Hydra composes it for a new run. For a resumed run, read it from the run's folder.

Overrides of a resumed run may change how the run is computed and watched, but not what the run has trained so far. A
run folder may come from somebody else. If only this folder names a function, a file or a server, gptmini does not call
the function, write the file or send data to the server.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.configuration.building import root_settings, run_name
from gptmini.configuration.compose import Composed
from gptmini.configuration.init_from import take_from_source
from gptmini.configuration.keys import groups, is_user_component, user_component_overrides
from gptmini.configuration.overrides import Typed, key_of, shown
from gptmini.configuration.trust import check_components
from gptmini.key_table import keys_with
from gptmini.system.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


# Keys of stored configurations that gptmini no longer has. A resumed run continues without them.
RETIRED = ("callbacks.pictures.embedding_tokens", "callbacks.overfitting")


def resolve_configuration(composed: Composed) -> tuple[dict[str, Any], Typed]:
    """Return the configuration of a new or resumed run as plain values, and all its overrides so far.

    If resume= or folder= names a run to resume, this is the stored configuration with the new overrides, and the key
    'resume' names the run. A run in folder= that was killed before its first checkpoint starts again, as a new run. The
    composed configuration is changed in place.

    Raises UserError if the run does not exist, if an override would change what was trained so far, or if the stored
    configuration is damaged, is from an earlier version, or names a class that only this file names.
    """
    from omegaconf import OmegaConf

    config, typed = composed
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"{missing[0]} is required; set {missing[0]}=VALUE")
    OmegaConf.resolve(config)
    root = root_settings(config)
    if root.epochs is not None and (root.budget is not None or typed.has("trainer.max_steps")):
        raise UserError("give only one of epochs=, budget= and trainer.max_steps=")
    named = _run_to_resume(root.resume, root.folder)
    if named is not None:
        config, typed = _stored_configuration(named, config, typed)
    else:
        if config.name is None:
            config.name = run_name(config, typed)
        take_from_source(config, typed)
    plain: Any = OmegaConf.to_container(config)
    return plain, typed


def _run_to_resume(resume: str | None, folder: str | None) -> Path | None:
    from gptmini.runs import has_checkpoint, is_run, named_run

    if resume is not None and folder is not None:
        raise UserError("give either resume= or folder=, not both")
    if resume is not None:
        # Resolve a folder of runs only once, because a run that starts later must not replace the run to resume.
        return named_run(resume)
    if folder is None:
        return None
    # A run that was killed before its first checkpoint starts again with the overrides of this command.
    place = Path(folder).expanduser()
    return place if is_run(place) and has_checkpoint(place) else None


def _stored_configuration(
    named: Path, config: "DictConfig", typed: Typed
) -> "tuple[DictConfig, Typed]":
    from omegaconf import OmegaConf

    from gptmini.runs import find_run, read_config

    folder = find_run(named)
    tree, earlier = read_config(folder, to_go_on=True)
    if "data" not in tree:  # an imported model
        raise UserError(
            f"cannot resume {folder}, because it is an imported model; start a run with init_from={folder}"
        )

    for key in RETIRED:
        *above, name = key.split(".")
        part: Any = tree
        for group in above:
            part = part.get(group) if isinstance(part, dict) else None
        if isinstance(part, dict):
            part.pop(name, None)

    for group in sorted(set(groups()) & tree.keys()):
        if not isinstance(tree[group], dict):
            path = folder / "config.yaml"
            raise UserError(f"{path}: {group} must be a mapping, got {shown(tree[group])}")
    # A part from the command line replaces the stored part of the same name, so that the file adds nothing to it.
    for line in user_component_overrides(typed.overrides):
        group, name = key_of(line).split(".")[:2]
        tree.get(group, {}).pop(name, None)
    check_components(tree, folder, config, typed)

    stored = OmegaConf.create(tree)
    for line in typed.overrides:
        key = key_of(line)
        is_part = is_user_component(".".join(key.split(".")[:2]))
        was_given = line in earlier and key not in keys_with("resumable") and not is_part
        if key not in keys_with("place") and not was_given:
            _apply(key, stored, config, folder, line)

    # Only the command line or gptmini's own configuration decides where tokens are prepared and texts are downloaded.
    stored.data_dir = config.data_dir
    if stored.data.get("folder") is not None:
        stored.data.folder = f"{config.data_dir}/downloads"
    stored.runs_dir = config.runs_dir
    stored.resume = str(folder if named.is_dir() else named)
    stored.folder = None
    return stored, replace(typed, before=earlier)


def _apply(key: str, stored: "DictConfig", config: "DictConfig", folder: Path, line: str) -> None:
    from omegaconf import OmegaConf

    part = ".".join(key.split(".")[:2])
    if is_user_component(part):
        OmegaConf.update(stored, part, OmegaConf.select(config, part), merge=False, force_add=True)
        return

    new = OmegaConf.select(config, key)
    old = OmegaConf.select(stored, key)
    if new == old and key != "experiment":
        return
    if key == "epochs":
        raise UserError("a resumed run cannot change epochs; write trainer.max_steps= instead")
    if key not in keys_with("resumable"):
        raise UserError(
            f"a resumed run cannot change {key}; leave out {line}, or start a new run with init_from={folder}"
        )
    if key in keys_with("only_off") and new is not None:
        raise UserError(f"a resumed run can only turn {key} off; write {key}=null")
    group = key.rpartition(".")[0]
    if group and OmegaConf.select(stored, group) is None:
        raise UserError(f"cannot set {key}, because the run {folder} was started without {group}")
    OmegaConf.update(stored, key, new, force_add=True)
