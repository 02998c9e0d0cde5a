"""Compose a configuration with Hydra, from Python or for a job that Hydra runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gptmini.configuration.overrides import Typed, in_hydras_grammar, quoted
from gptmini.files import CONFIGS
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


class Composed(NamedTuple):
    """What Hydra has composed for one job, and what was typed for it."""

    config: "DictConfig"  # only files of this package look into it
    typed: Typed

    def value(self, key: str) -> Any:
        """The value of a dotted key; None where there is none."""
        from omegaconf import OmegaConf

        return OmegaConf.select(self.config, key)

    @property
    def tree(self) -> dict[str, Any]:
        """The configuration as plain values, in which interpolations are not resolved."""
        from omegaconf import OmegaConf

        tree: Any = OmegaConf.to_container(self.config)
        return tree


@contextmanager
def in_one_class() -> Iterator[None]:
    """Turn what Python raises inside of Hydra, for a configuration that Hydra did not expect, into a UserError."""
    try:
        yield
    except (ValueError, TypeError, AssertionError) as error:
        reason = str(error) or type(error).__name__
        raise UserError(f"the configuration cannot be composed: {reason}") from error


def check_root(config: "DictConfig", command: str) -> None:
    """Raise UserError for an unknown root key, a group that is a value, or a key of Hydra's own in gptmini's parts."""
    from omegaconf import OmegaConf

    from gptmini.configuration.keys import check_hydras_keys, no_root_key, root_keys

    known = root_keys(command)
    for key in config:
        if key not in known:
            raise UserError(no_root_key(str(key)))

        value = OmegaConf.select(config, str(key), throw_on_missing=False)
        is_group = (CONFIGS / str(key)).is_dir()
        if is_group and not OmegaConf.is_dict(value):
            raise UserError(
                f"{key} must hold keys of its own, got {value!r}; {key}=NAME chooses an option, in a file "
                f"defaults: [override /{key}: NAME]"
            )
    # Interpolations stay as they are: they may lead nowhere.
    check_hydras_keys(OmegaConf.to_container(config, resolve=False))


def typed_for_job(config_dir: str | None) -> Typed:
    """What was typed for the job that Hydra runs at this moment."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    hydra_config = HydraConfig.get()
    # As they were typed: an interpolation in them may lead nowhere.
    overrides: Any = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)
    return Typed(
        overrides=overrides,
        choices=dict(hydra_config.runtime.choices),
        config_dir=config_dir,
    )


def compose(command: str, overrides: Sequence[str], config_dir: str | None = None) -> Composed:
    """Compose a configuration in Python, even while Hydra runs a job in this process.

    Args:
        command: the name of the root configuration.
        overrides: KEY=VALUE or GROUP=NAME each, as a user types them.
        config_dir: a folder of the user's own that adds options to the groups.
    """
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf, open_dict

    readable = in_hydras_grammar(overrides)
    added = []
    if config_dir is not None:
        added.append(f"hydra.searchpath=[{quoted(f'file://{Path(config_dir).resolve()}')}]")

    # Hydra's state is global, and initialising it twice is an error: set aside the state of a job that is running.
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with in_one_class(), hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
            config = hydra.compose(command, [*readable, *added], return_hydra_config=True)
    finally:
        GlobalHydra.instance().hydra = running

    choices: Any = OmegaConf.to_container(config.hydra.runtime.choices)
    with open_dict(config):
        del config["hydra"]
    check_root(config, command)
    return Composed(config, Typed(overrides=readable, choices=choices, config_dir=config_dir))
