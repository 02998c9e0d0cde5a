"""Resolve the configuration of a run.

Hydra composes it for a new run. For a resumed run, read it from the run's folder.

Overrides of a resumed run may change how the run is computed and watched, but not what the run has trained so far. A
run folder may come from somebody else. If only this folder names a function, a file or a server, gptmini does not call
the function, write the file or send data to the server.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gptmini.configuration.building import build_settings, root_settings
from gptmini.configuration.compose import Composition
from gptmini.configuration.keys import groups, user_component, user_component_overrides
from gptmini.configuration.request import UserRequest, key_of
from gptmini.configuration.trust import check_components
from gptmini.key_table import keys_with
from gptmini.runs import find_run, has_checkpoint, is_run, named_run, read_config
from gptmini.system.errors import UserError, value_text
from gptmini.system.files import is_address, name_of_address
from gptmini.training import Settings

# Keys of stored configurations that gptmini no longer has. A resumed run continues without them.
RETIRED = ("callbacks.pictures.embedding_tokens", "callbacks.overfitting")


def settings_of(composition: Composition) -> tuple[Settings, UserRequest]:
    """Return the checked settings of a new or resumed run, and all its overrides so far. This does not import torch.

    Raises the errors of resolve_configuration and build_settings.
    """
    plain, request = resolve_configuration(composition)
    return build_settings(plain), request


def resolve_configuration(composition: Composition) -> tuple[dict[str, Any], UserRequest]:
    """Return the configuration of a new or resumed run as plain values, and all its overrides so far.

    If resume= or folder= names a run to resume, this is the stored configuration with the new overrides, and the key
    'resume' names the run. A run in folder= that was killed before its first checkpoint starts again, as a new run.

    Raises UserError if the run does not exist, if an override would change what was trained so far, or if the stored
    configuration is damaged, is from an earlier version, or names a class that only this file names.
    """
    plain, request = composition.plain(), composition.request
    root = root_settings(plain)
    if root.epochs is not None and (root.budget is not None or request.has("trainer.max_steps")):
        raise UserError("give only one of epochs=, budget= and trainer.max_steps=")

    named = _run_to_resume(root.resume, root.folder)
    if named is not None:
        return _stored_configuration(named, plain, request)
    if root.name is None:
        plain["name"] = _default_name(plain["data"], request)
    if root.init_from is not None:
        # Only these runs need the tokenizer of another model.
        from gptmini.configuration.init_from import with_source

        plain = with_source(plain, request)
    return plain, request


def _default_name(data: Mapping[str, Any], request: UserRequest) -> str:
    """Return the name of the experiment or the text."""
    experiment = request.choices.get("experiment")
    path = data.get("path")
    path = path if isinstance(path, str) else ""
    is_file = path != "" and (is_address(path) or Path(path).expanduser().is_file())
    if experiment is not None:
        name = experiment.replace("/", "-")
    elif isinstance(data.get("dataset"), str):
        name = Path(data["dataset"]).name
    elif request.choices["data"] == "text" and is_file:
        name = name_of_address(path) if is_address(path) else Path(path).name
        name = name.partition(".")[0]
    else:
        name = request.choices["data"] or ""

    # RootSettings refuses these names, and the user has not chosen one.
    return "text" if name in ("", "..", "latest") else name.replace("\\", "-")


def _run_to_resume(resume: str | None, folder: str | None) -> Path | None:
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
    named: Path, plain: dict[str, Any], request: UserRequest
) -> tuple[dict[str, Any], UserRequest]:
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
            raise UserError(f"{path}: {group} must be a mapping, got {value_text(tree[group])}")
    # A part from the command line replaces the stored part of the same name, so that the file adds nothing to it.
    for line in user_component_overrides(request.overrides):
        group, _, name = user_component(key_of(line)).partition(".")
        tree.get(group, {}).pop(name, None)
    check_components(tree, folder, plain, request)

    stored = OmegaConf.create(tree)
    config = OmegaConf.create(plain)
    for line in request.overrides:
        key = key_of(line)
        may_change = key in keys_with("resumable") or user_component(key)
        was_given = line in earlier and not may_change
        if key not in keys_with("place") and not was_given:
            _apply(key, stored, config, folder, line)

    # Only the command line or gptmini's own configuration decides where tokens are prepared and texts are downloaded.
    stored.data_dir = config.data_dir
    if stored.data.get("folder") is not None:
        stored.data.folder = f"{config.data_dir}/downloads"
    stored.runs_dir = config.runs_dir
    stored.resume = str(folder if named.is_dir() else named)
    stored.folder = config.folder  # null with resume=
    resumed: Any = OmegaConf.to_container(stored)
    return resumed, replace(request, before=earlier)


def _apply(key: str, stored: DictConfig, config: DictConfig, folder: Path, line: str) -> None:
    part = user_component(key)
    if part:
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
