"""Compose a configuration with Hydra, either in Python or for a job of Hydra.

Users write overrides in a shell. Hydra reads these overrides by its own grammar, so some values must be quoted first.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict

from gptmini.configuration.keys import unknown_key
from gptmini.configuration.request import UserRequest, key_of
from gptmini.key_table import keys_with
from gptmini.system.errors import UserError, value_text
from gptmini.system.files import CONFIGS
from gptmini.system.untrusted import read_yaml

# Keys for which Hydra would create an empty folder. gptmini writes runs elsewhere.
FOLDERS = ("hydra.run.dir", "hydra.run")
# A value that starts with one of these characters is a list or a quoted string in Hydra's notation, even if the key is
# a text key.
NOTATION = ("[", "'", '"')
SWEEPS = re.compile(r"(choice|range|interval|glob|shuffle|sort|tag)\(")


class Composition(NamedTuple):
    """The configuration that Hydra composed for one job, and the job's overrides."""

    config: DictConfig
    request: UserRequest

    def plain(self) -> dict[str, Any]:
        """Return the values of all keys, without interpolations. Raise UserError if a required value is missing."""
        missing = sorted(OmegaConf.missing_keys(self.config))
        if missing:
            raise UserError(f"{missing[0]} is required; set {missing[0]}=VALUE")
        OmegaConf.resolve(self.config)
        plain: Any = OmegaConf.to_container(self.config)
        return plain


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
    keys = _root_keys(command)
    for key in config:
        if key not in keys:
            raise UserError(_unknown_root_key(str(key)))

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


def _root_keys(command: str) -> set[str]:
    """Return the keys at the root of a command's configuration, including its groups."""
    tree = read_yaml(CONFIGS / f"{command}.yaml", trusted=True)
    keys = tree.keys() - {"defaults", "hydra"}
    for entry in tree["defaults"]:
        if isinstance(entry, dict):
            keys |= {name for name in entry if not name.startswith("override ")}
        elif entry != "_self_":
            keys |= _root_keys(entry)
    return keys - {"experiment"}


def _unknown_root_key(key: str) -> str:
    """Return the message for an unknown key at the root of a configuration."""
    if key == "experiment":
        return "the first line in the file of an experiment must be: # @package _global_"
    group, dot, name = key.partition(".")
    if dot:
        return f"{key} is not a key in a file; write {group}: {{{name}: ...}}"
    return unknown_key(key)


def quote_for_hydra(overrides: Sequence[str], *, multirun: bool = False) -> list[str]:
    """Quote overrides so that Hydra reads what the user means.

    Hydra's grammar does not allow umlauts, and gives commas, parentheses and others a meaning. A value is quoted if the
    grammar cannot read it, or if its key holds text and Hydra would read something else. With `multirun`, commas
    separate the values of a sweep.

    Raises UserError if a word is not an override, or if a key has several values without multirun.
    """
    parser = OverridesParser.create()
    readable = []
    for line in overrides:
        key, equals, value = line.partition("=")
        if not equals and not line.startswith("~"):
            raise UserError(f"an override must be KEY=VALUE, got {line}")
        if key_of(line) in FOLDERS:
            raise UserError(f"{key_of(line)} has no effect; set folder=, runs_dir= or data_dir=")
        is_text_key = key.lstrip("+") in keys_with("text")
        try:
            override = parser.parse_override(line)
        except HydraException:
            if not is_text_key and value.startswith(("[", "{")):
                raise UserError(
                    f"cannot parse {line} as a list or mapping; put quotes around strings with special characters"
                ) from None
            readable.append(f"{key}={quoted(value)}")
            continue

        is_sweep = override.is_sweep_override()
        is_text = override.is_delete() or isinstance(override.value(), str | None)
        is_scalar = isinstance(override.value(), int | float | None)
        if equals and is_scalar and (CONFIGS / key.lstrip("+")).is_dir():
            is_meant = False  # with a quoted value, Hydra's error lists the options of the group
        elif is_text_key:
            is_notation = value.startswith(NOTATION) or SWEEPS.match(value) is not None
            is_one = not is_sweep and (is_text or is_notation)
            has_spaces = value != value.strip()  # Hydra would drop them
            is_meant = not has_spaces and (multirun or is_one)
        elif is_sweep and not multirun:
            raise UserError(
                f"{line} has several values; use gptmini sweep or -m, or a decimal point instead of the comma"
            )
        else:
            is_meant = True
        readable.append(line if is_meant else f"{key}={quoted(value)}")
    return readable


def quoted(text: str) -> str:
    """Return any text as a quoted value of Hydra's override grammar."""
    return QuotedString(text, Quote.double).with_quotes()


def as_override(key: str, value: str) -> str:
    """Return KEY=VALUE for a text value, quoted for Hydra if necessary."""
    (line,) = quote_for_hydra([f"{key}={value}"])
    is_same = OverridesParser.create().parse_override(line).value() == value
    return line if is_same else f"{key}={quoted(value)}"
