"""Build the settings of a command from plain values, and the objects of components when they are needed."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from typing import Any

from hydra.utils import instantiate
from omegaconf import OmegaConf

from gptmini.configuration.keys import known_keys, nearest_key, unknown_key
from gptmini.system.errors import UserError, value_text
from gptmini.system.world import this_world
from gptmini.training import (
    Component,
    PrepareSettings,
    RootSettings,
    Settings,
    TextSettings,
    TrainerSettings,
    divisors,
    one_pass_values,
    sequences_per_rank,
)


def text_settings(plain: Mapping[str, Any]) -> TextSettings:
    """Build the parts of a configuration that gptmini prepare uses."""
    return TextSettings(
        root=root_settings(plain, PrepareSettings),
        tokenizer=build_component(component_of(plain, "tokenizer")),
        corpus=component_of(plain, "data"),
        plain=plain,
    )


def build_settings(plain: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Settings:
    """Build and check the settings of a run without importing torch. The changes are new values by dotted key.

    Raises UserError if a setting is wrong. Raises an error of pydantic or Hydra if a value has the wrong type or range.
    """
    plain = deepcopy(dict(plain))
    for key, value in (changes or {}).items():
        group, _, name = key.rpartition(".")
        part = plain[group] if group else plain
        part[name] = value

    root = root_settings(plain)
    trainer, notes = _trainer_settings(plain)
    # The tokenizer is last, because it imports NumPy.
    parts = {
        group: build_component(component_of(plain, group))
        for group in ("model", "optimizer", "schedule", "tokenizer")
    }
    return Settings(
        root=root,
        trainer=trainer,
        **parts,
        corpus=component_of(plain, "data"),
        callbacks=_components(plain, "callbacks"),
        loggers=_components(plain, "logger"),
        notes=notes,
        plain=plain,
    )


def root_settings(
    plain: Mapping[str, Any], kind: type[RootSettings] = RootSettings
) -> RootSettings:
    """Check the values of the root keys. For gptmini prepare, `kind` is PrepareSettings."""
    names = [field.name for field in fields(kind)]
    for name in names:
        if name not in plain:
            raise UserError(f"{name} is required; set {name}=VALUE")
    return kind(**{name: plain[name] for name in names})


def build_component(component: Component, **arguments: object) -> Any:
    """Build the object of a component, with additional `arguments`. Raise UserError if it names no class."""
    key, values = component
    # Hydra's errors name the place of a part in the whole configuration.
    group, _, name = key.partition(".")
    tree = OmegaConf.create({group: {name: values} if name else values})
    part = tree[group][name] if name else tree[group]
    built = instantiate(part, _convert_="all", **arguments)
    # The run adds the last arguments of a logger. Nothing completes another partial object.
    is_incomplete = isinstance(built, partial) and not key.startswith("logger.")
    if built is None or is_incomplete or isinstance(built, dict | list):
        raise UserError(
            f"{key} must name its class with the key _target_, or choose an option that names a class, got "
            f"{value_text(built)}"
        )
    return built


def target_class(component: Component) -> Any:
    """Return the class or function of gptmini that builds a component, or None if it is from another library."""
    package, _, name = str(component.values.get("_target_")).rpartition(".")
    return getattr(import_module(package), name) if package.startswith("gptmini.") else None


def as_yaml(plain: Mapping[str, Any]) -> str:
    """Return a configuration as YAML. The argument is the same as for build_settings."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(plain)))


def _trainer_settings(plain: Mapping[str, Any]) -> tuple[TrainerSettings, list[str]]:
    """Return the settings of the trainer for the devices of this command, and notes for the user.

    A resumed run may have other devices. If its batch_size does not divide the sequences of a device, use a smaller
    one.
    """
    world = this_world()
    component = component_of(plain, "trainer")
    batch_size = component.values.get("batch_size")
    if plain["resume"] is None or type(batch_size) is not int or batch_size < 1:
        return build_component(component).placed(world), []

    placed = build_component(component, batch_size="auto").placed(world)
    share = sequences_per_rank(placed.global_batch_size, placed.n_ranks)
    fitting = next(size for size in divisors(share) if size <= batch_size)
    notes = []
    if fitting != batch_size:
        notes.append(
            f"trainer.batch_size={batch_size} does not divide the {share} sequences of a device; using {fitting}"
        )
    return replace(placed, batch_size=fitting), notes


def component_of(plain: Mapping[str, Any], group: str) -> Component:
    """Return the component of a group. The word auto is replaced by the value for one pass over the text."""
    values = plain.get(group) or {}
    return Component(group, {**values, **one_pass_values(values)})


def _components(plain: Mapping[str, Any], group: str) -> list[Component]:
    """Return the components of the group callbacks or logger. A component that is null is off."""
    parts = plain.get(group) or {}
    if not isinstance(parts, dict):
        raise UserError(f"{group} must be null or a mapping of parts, got {value_text(parts)}")

    components = []
    for name, values in parts.items():
        if values is None:
            continue
        key = f"{group}.{name}"
        if isinstance(values, dict) and "_target_" in values:
            components.append(Component(key, values))
        elif isinstance(values, dict) and key in known_keys():
            raise UserError(unknown_key(key))
        else:
            close = nearest_key(key)
            hint = f"; or did you mean {close}?" if close not in ("", key) else ""
            raise UserError(
                f"{key} must be null or name its class with the key _target_, got {value_text(values)}{hint}"
            )
    return components
