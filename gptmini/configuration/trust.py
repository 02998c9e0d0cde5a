"""Check what a stored configuration names, because a run folder may come from somebody else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from gptmini.configuration.keys import known_keys
from gptmini.configuration.request import UserRequest
from gptmini.system.errors import UserError
from gptmini.system.files import CONFIGS
from gptmini.system.untrusted import nodes, read_yaml


def known_nodes(folder: Path) -> Iterator[tuple[tuple, object]]:
    """Yield the entries of every YAML file in a folder of trusted configurations, in the same form as nodes()."""
    for file in folder.rglob("*.yaml"):
        group = file.parent.relative_to(folder).parts
        # The keys of a root configuration or of an experiment start at the root. The keys of a group are below the
        # group.
        above = () if group == ("experiment",) else group
        yield from nodes(read_yaml(file, trusted=True), above)


def check_components(tree: dict, folder: Path, plain: dict[str, Any], request: UserRequest) -> None:
    """Raise UserError unless the present configuration names everything that a stored configuration would call.

    Hydra builds a part from its keys between underscores, such as _target_. A stored configuration may have
    such a key only if gptmini's files, the user's --config-dir or the command line have the same key with the same
    value. Full names are compared, because torch.hub.load runs code, although torch is a known package. Places are
    compared, because gptmini.data.PublishedText as a callback would download a text into any folder.

    Args:
        tree: the stored configuration.
        folder: the run's folder, which the error message names.
        plain: the composed configuration, with the parts from the command line.
        request: the overrides.
    """
    path = folder / "config.yaml"
    given = [*nodes(plain)]
    if request.config_dir is not None:
        given += known_nodes(Path(request.config_dir))
    trusted = {
        (".".join(map(str, keys)), str(value)) for keys, value in (*known_nodes(CONFIGS), *given)
    }
    own_loggers = [(keys[1], part) for keys, part in given if keys[:-1] == ("logger",)]

    for keys, value in nodes(tree):
        name = str(keys[-1])
        # A key that contains a dot would look like a key of a different part.
        if "." in name:
            raise UserError(f"{path} must have keys without dots, got {name!r}")
        # An interpolation is computed when it is read: ${oc.env:NAME} reads an environment variable.
        if isinstance(value, str) and "${" in value:
            raise UserError(f"{path} must contain only plain values, got {value!r}")

        part = ".".join(map(str, keys[:-1]))
        is_of_hydra = name.startswith("_") and name.endswith("_")
        if is_of_hydra and (f"{part}.{name}", str(value)) not in trusted:
            raise UserError(
                f"{path} sets {part}.{name} to {value}, which only this file names; to call it, add "
                f"+{part}=... or --config-dir again"
            )
        is_argument = keys[0] == "logger" and len(keys) == 3 and not is_of_hydra
        if is_argument and (keys[1], tree["logger"][keys[1]]) not in own_loggers:
            _check_argument(f"{part}.{name}", value, path)


def _check_argument(key: str, value: Any, path: Path) -> None:
    """Raise UserError if an argument lets a stored logger write outside its run, or send its logs to somebody else."""
    if key not in known_keys():
        raise UserError(f"{path} sets {key}, but gptmini does not have this key; remove it")
    own_server = OmegaConf.load(CONFIGS / "logger" / "mlflow.yaml").mlflow.tracking_uri
    if key.endswith(".tracking_uri") and value != own_server:
        raise UserError(
            f"{path} sends logs to {value}; if you trust this server, set MLFLOW_TRACKING_URI={value}"
        )
    is_path = isinstance(value, str) and key.endswith(".name") and set(value) & set("/\\")
    if is_path or value == "..":
        raise UserError(f"{path}: {key} must be a name without / or \\, got {value}")
