"""Parts of a configuration, made into the objects that they describe."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from gptmini.user_error import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gptmini.training.trainer import Logger


def build_from(config: "DictConfig") -> Any:
    """The object that a part of a configuration describes."""
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate
    from pydantic import ValidationError

    from gptmini.settings import first_mistake

    try:
        return instantiate(config, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, ValidationError):
            raise UserError(
                f"{config._get_full_key(None)}.{first_mistake(error.__cause__)}"
            ) from None
        raise


def build_parts(config: "DictConfig", group: str) -> dict[str, Any]:
    """The objects that a group of a configuration describes, by name; parts that are null are left out.

    Raises UserError: the group is no mapping, or one of its parts cannot be made.
    """
    from omegaconf import OmegaConf

    parts = config[group]
    if parts is None:
        return {}
    if not OmegaConf.is_dict(parts):
        raise UserError(f"{group} must be null or hold parts by name, got {parts!r}")

    built = {}
    for name, part in parts.items():
        if part is not None:
            built[name] = _build_part(f"{group}.{name}", part)
    return built


def _build_part(key: str, part: Any) -> Any:
    """The callback or logger that the configuration under a key describes.

    Raises UserError: the configuration names no class, one that cannot be imported, or arguments that do not fit.
    """
    from hydra.errors import InstantiationException
    from omegaconf import OmegaConf

    if not OmegaConf.is_dict(part):
        raise UserError(f"{key} must be null or have its own keys, got {part!r}")
    if "_target_" not in part:
        group = key.partition(".")[0]
        raise UserError(
            f"{key} must have a class under _target_, got only {part!r}; an experiment may set keys "
            f"of a part that the chosen option of {group} leaves out, and {key}=null leaves it out too"
        )

    try:
        return build_from(part)
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, TypeError):
            raise UserError(f"{key} does not fit: {cause}") from None
        if isinstance(cause, ImportError):
            raise UserError(
                f"{key} names {part._target_}, which cannot be imported: {cause}"
            ) from None
        raise


def connected(logger: "Logger | partial", offered: Mapping[str, Any]) -> "Logger":
    """A logger; a partial is called with the offered arguments that it has as parameters and that are not set yet."""
    if not isinstance(logger, partial):
        return logger

    parameters = inspect.signature(logger.func).parameters
    arguments = {}
    for name, value in offered.items():
        if name in parameters and name not in logger.keywords:
            arguments[name] = value
    return logger(**arguments)
