"""What a stored configuration may name: a run folder may come from somebody else."""

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


def check_parts(tree: dict, folder: Path, config: "DictConfig", typed: Typed) -> None:
    """Raise UserError unless all that would be called for a stored configuration is named by a configuration here.

    A part may have a class that gptmini's files name for it, or those in the user's own folder, or one that was typed
    again. A stored logger may have only the arguments that gptmini's files give one.

    Args:
        tree: the stored configuration.
        folder: of the run, for the error message.
        config: the composed configuration, which holds what was typed again.
        typed: what was typed.
    """
    from omegaconf import OmegaConf

    path = folder / "config.yaml"
    composed: Any = OmegaConf.to_container(config)
    allowed = targets(known_nodes(CONFIGS)) | targets(nodes(composed))
    loggers = list((composed.get("logger") or {}).items())
    if typed.config_dir is not None:
        own = Path(typed.config_dir)
        allowed |= targets(known_nodes(own))
        loggers += [(keys[1], part) for keys, part in known_nodes(own) if keys[:-1] == ("logger",)]
    check_targets(tree, allowed, path)
    check_hydras_keys(tree, f"{path}: ")
    _check_loggers(tree.get("logger") or {}, path, loggers)


def _check_loggers(stored: dict, path: Path, typed: Sequence[tuple[str, object]]) -> None:
    """Raise UserError where a stored logger would write outside its run, or send what it logs to somebody else.

    A stored logger may have only the keys that a configuration file gives it, and the server of MLflow must be the
    user's own.

    Args:
        stored: the loggers, by name.
        path: the file, for the error message.
        typed: names and parts of the loggers that the command line or the user's own folder describes, which may be
            anything.
    """
    for name, part in stored.items():
        if not isinstance(part, dict) or (name, part) in typed:
            continue
        for key, value in part.items():
            if not key.endswith("_") and f"logger.{name}.{key}" not in known_keys():
                raise UserError(
                    f"{path} gives logger.{name} the argument {key}, which no configuration here does"
                )
            if key == "tracking_uri" and value != _own_server():
                raise UserError(
                    f"{path} logs to {value}; if that is yours, set MLFLOW_TRACKING_URI to it"
                )
            is_path = isinstance(value, str) and key == "name" and set(value) & set("/\\")
            if is_path or value == "..":
                raise UserError(f"{path} must give logger.{name}.{key} a plain name, got {value}")


def _own_server() -> str:
    """The server to which MLflow's logger sends, as gptmini's own configuration says it."""
    from omegaconf import OmegaConf

    return OmegaConf.load(CONFIGS / "logger" / "mlflow.yaml").mlflow.tracking_uri
