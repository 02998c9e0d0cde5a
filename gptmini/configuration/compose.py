"""Compose a configuration with Hydra, either in Python or for a job of Hydra."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from gptmini.configuration.keys import root_keys, unknown_root_key
from gptmini.configuration.overrides import quote_for_hydra, quoted
from gptmini.configuration.request import UserRequest
from gptmini.system.errors import UserError, value_text
from gptmini.system.files import CONFIGS


class Composition(NamedTuple):
    """The configuration that Hydra composed for one job, and the job's overrides."""

    config: DictConfig
    request: UserRequest

    def value(self, key: str) -> Any:
        """Return the value of a dotted key, or None if the key is unknown."""
        return OmegaConf.select(self.config, key)

    def plain(self) -> dict[str, Any]:
        """Return the values of all keys, without interpolations. Raise UserError if a required value is missing."""
        missing = sorted(OmegaConf.missing_keys(self.config))
        if missing:
            raise UserError(f"{missing[0]} is required; set {missing[0]}=VALUE")
        OmegaConf.resolve(self.config)
        plain: Any = OmegaConf.to_container(self.config)
        return plain


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Turn Python errors that Hydra raises for an unexpected configuration into a UserError."""
    try:
        yield
    except (ValueError, TypeError, AssertionError) as error:
        reason = str(error) or type(error).__name__
        raise UserError(f"cannot compose the configuration: {reason}") from error


def check_root(config: DictConfig, command: str) -> None:
    """Raise UserError if a root key is unknown, or if a group is missing or is not a mapping."""
    keys = root_keys(command)
    for key in config:
        if key not in keys:
            raise UserError(unknown_root_key(str(key)))

        value = OmegaConf.select(config, str(key), throw_on_missing=False)
        is_group = (CONFIGS / str(key)).is_dir()
        if is_group and not OmegaConf.is_dict(value):
            raise UserError(
                f"{key} must be a mapping, got {value_text(value)}; write {key}=NAME, or in a file "
                f"defaults: [override /{key}: NAME]"
            )
    for key in sorted(keys - {str(key) for key in config}):
        if (CONFIGS / key).is_dir():
            option = "none" if (CONFIGS / key / "none.yaml").is_file() else "NAME"
            raise UserError(f"cannot remove the group {key}; write {key}={option}")


def request_of_job(config_dir: str | None) -> UserRequest:
    """Return the overrides of the job that Hydra is running."""
    hydra_config = HydraConfig.get()
    # Do not resolve interpolations, because the key that an interpolation names may not exist.
    overrides: Any = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)
    return UserRequest(
        overrides=overrides,
        choices=dict(hydra_config.runtime.choices),
        config_dir=config_dir,
    )


def compose(command: str, overrides: Sequence[str], config_dir: str | None = None) -> Composition:
    """Compose a configuration in Python, even while Hydra runs a job in this process.

    The overrides are written as on the command line. The files in config_dir are additional options of the groups.
    """
    readable = quote_for_hydra(overrides)
    added = []
    if config_dir is not None:
        added.append(f"hydra.searchpath=[{quoted(f'file://{Path(config_dir).resolve()}')}]")

    # Hydra has a global state, and it is an error to initialize Hydra twice. Set aside the state of a running job.
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with as_user_errors(), hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
            config = hydra.compose(command, [*readable, *added], return_hydra_config=True)
    finally:
        GlobalHydra.instance().hydra = running

    choices: Any = OmegaConf.to_container(config.hydra.runtime.choices)
    with open_dict(config):
        del config["hydra"]
    check_root(config, command)
    return Composition(
        config, UserRequest(overrides=readable, choices=choices, config_dir=config_dir)
    )
