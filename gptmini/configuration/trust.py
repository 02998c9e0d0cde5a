"""Check which classes a stored configuration names, because a run folder may come from somebody else."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.configuration.keys import check_hydras_keys, known_keys
from gptmini.configuration.overrides import Typed
from gptmini.files import CONFIGS
from gptmini.untrusted import check_targets, known_nodes, nodes, targets
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Classes that gptmini's files have named earlier, with their parts. A run that was started with them can be resumed.
EARLIER = {("callbacks.early_stopping", "lightning.pytorch.callbacks.EarlyStopping")}


def check_components(tree: dict, folder: Path, config: "DictConfig", typed: Typed) -> None:
    """Raise UserError unless the present configuration names every class that a stored configuration would call.

    A part may have a class only if gptmini's files, the user's --config-dir or the command line name this class for the
    part. A stored logger may have only the arguments that the logger has in gptmini's files.

    Args:
        tree: the stored configuration.
        folder: the run's folder, which the error message names.
        config: the composed configuration, with the parts from the command line.
        typed: the overrides.
    """
    from omegaconf import OmegaConf

    path = folder / "config.yaml"
    composed: Any = OmegaConf.to_container(config)
    allowed = targets(known_nodes(CONFIGS)) | EARLIER | targets(nodes(composed))
    loggers = list((composed.get("logger") or {}).items())
    if typed.config_dir is not None:
        own = Path(typed.config_dir)
        allowed |= targets(known_nodes(own))
        loggers += [(keys[1], part) for keys, part in known_nodes(own) if keys[:-1] == ("logger",)]
    check_targets(tree, allowed, path)
    check_hydras_keys(tree, f"{path}: ")
    _check_loggers(tree.get("logger") or {}, path, loggers)


def _check_loggers(stored: dict, path: Path, typed: Sequence[tuple[str, object]]) -> None:
    """Raise UserError if a stored logger would write outside its run or send its logs to somebody else.

    A stored logger may have only the keys that the logger has in a configuration file of gptmini. The MLflow server
    must be the server in gptmini's own configuration.

    Args:
        stored: the loggers, by name.
        path: the file that the error message names.
        typed: names and parts of the loggers from the command line or --config-dir. These loggers are not restricted.
    """
    for name, part in stored.items():
        if not isinstance(part, dict) or (name, part) in typed:
            continue
        for key, value in part.items():
            if not key.endswith("_") and f"logger.{name}.{key}" not in known_keys():
                raise UserError(
                    f"{path} sets logger.{name}.{key}, but gptmini does not have this key; remove it"
                )
            if key == "tracking_uri" and value != _own_server():
                raise UserError(
                    f"{path} sends logs to {value}; if you trust this server, set MLFLOW_TRACKING_URI={value}"
                )
            is_path = isinstance(value, str) and key == "name" and set(value) & set("/\\")
            if is_path or value == "..":
                raise UserError(
                    f"{path}: logger.{name}.{key} must be a name without / or \\, got {value}"
                )


def _own_server() -> str:
    """Return the server of the MLflow logger in gptmini's own configuration."""
    from omegaconf import OmegaConf

    return OmegaConf.load(CONFIGS / "logger" / "mlflow.yaml").mlflow.tracking_uri
