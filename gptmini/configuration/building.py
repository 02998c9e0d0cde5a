"""Build each part of a configuration as the class that checks it, before the training text is read."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.configuration.keys import known_keys, nearest_key, unknown_key
from gptmini.configuration.overrides import shown
from gptmini.system.errors import UserError
from gptmini.system.world import this_world
from gptmini.training.settings import PrepareSettings, RootSettings, Settings, TextSettings

# Importing torch and Lightning takes seconds. A wrong value is reported before these imports.
if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gptmini.configuration.overrides import Typed
    from gptmini.data import Corpus
    from gptmini.model import ModelSettings
    from gptmini.training.trainer import Callback
    from gptmini.training.trainer_settings import TrainerSettings


def root_settings(config: "DictConfig", kind: type[RootSettings] = RootSettings) -> RootSettings:
    """Check the root keys of a configuration. For gptmini prepare, `kind` is PrepareSettings."""
    from omegaconf import OmegaConf

    names = kind.__dataclass_fields__
    for name in names:
        if name not in config:
            raise UserError(f"{name} is required; set {name}=VALUE")
    values: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, [*names]))
    return kind(**values)


def text_settings(plain: Mapping[str, Any]) -> TextSettings:
    """Build the parts of a configuration that gptmini prepare uses."""
    config = _changed(plain, {})
    return TextSettings(
        root=root_settings(config, PrepareSettings),
        tokenizer=build_component(config.tokenizer),
        text=_text(config),
        plain=_plain(config),
    )


def build_settings(plain: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Settings:
    """Build every part of a configuration that does not need the text. The changes are new values by dotted key.

    The parts that import torch are built last, because the import takes seconds. The text is opened later, and only by
    the first rank. It may come from stdin, or gptmini may have to download it.

    Raises UserError if a setting is wrong. Raises an error of pydantic or Hydra if a value has the wrong type or range.
    """
    config = _changed(plain, changes)
    root = root_settings(config)
    model = build_component(config.model)
    optimizer = build_component(config.optimizer)
    schedule = build_component(config.schedule)
    tokenizer = build_component(config.tokenizer)
    trainer, notes = _trainer_settings(config)

    from gptmini.system.hardware import choose_hardware
    from gptmini.training.quiet import quieten_lightning

    quieten_lightning()
    hardware = choose_hardware(
        trainer.device,
        trainer.precision,
        trainer.compile,
        trainer.devices_here,
        width=model.d_model,
    )
    if hardware.emulates_bf16:
        notes.append(
            f"trainer.precision={hardware.precision} is slow on this CPU, which has no instructions for bf16; "
            "use trainer.precision=auto"
        )
    callbacks = _callbacks(config.callbacks)
    check_model(model, callbacks, root.frozen)
    return Settings(
        root=root,
        trainer=trainer,
        hardware=hardware,
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        tokenizer=tokenizer,
        callbacks=callbacks,
        notes=notes,
        text=_text(config),
        make_loggers=partial(_made, config.logger, "logger"),
        plain=_plain(config),
    )


def as_yaml(plain: Mapping[str, Any]) -> str:
    """Return a configuration as YAML. The argument is the same as for build_settings."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(plain)))


def _changed(plain: Mapping[str, Any], changes: Mapping[str, Any] | None) -> "DictConfig":
    from omegaconf import DictConfig, OmegaConf

    config = OmegaConf.create(dict(plain))
    assert isinstance(config, DictConfig)
    for key, value in (changes or {}).items():
        OmegaConf.update(config, key, value)
    return config


def _plain(config: "DictConfig") -> dict[str, Any]:
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(config)
    return plain


def _text(config: "DictConfig") -> "Callable[[], Corpus]":
    """Return a function that opens the text. A resumed run does not download a text that only its folder names."""

    def open_text() -> "Corpus":
        own = target_class(config.data)
        arguments = {}
        is_stored = config.resume is not None
        if is_stored and own is not None and "may_download" in inspect.signature(own).parameters:
            arguments["may_download"] = False
        return build_component(config.data, **arguments)

    return open_text


def target_class(part: "DictConfig") -> Any:
    """Return the class or function of gptmini that builds a part, or None if another library builds the part."""
    package, _, name = str(part.get("_target_")).rpartition(".")
    return getattr(import_module(package), name) if package.startswith("gptmini.") else None


def build_component(part: "DictConfig", **arguments: object) -> Any:
    """Build the object that a part describes, with additional `arguments`. Raise UserError without a class."""
    from hydra.utils import instantiate

    made = instantiate(part, _convert_="all", **arguments)
    key = getattr(part, "_get_full_key", str)(None)
    # The run adds the last arguments of a logger. Nothing completes another partial object.
    is_incomplete = isinstance(made, partial) and not key.startswith("logger.")
    if made is None or is_incomplete or isinstance(made, dict | list):
        raise UserError(
            f"{key} must name its class with the key _target_, or choose an option that names a class, got "
            f"{shown(made)}"
        )
    return made


def _trainer_settings(config: "DictConfig") -> "tuple[TrainerSettings, list[str]]":
    """Return the settings of the trainer for the devices of this command, and notes for the user.

    A resumed run may have other devices. If its batch_size does not divide the sequences of a device, use a smaller
    one.
    """
    from gptmini.training.trainer_settings import divisors, sequences_per_rank

    world = this_world()
    wanted = config.trainer.get("batch_size")
    if config.resume is None or type(wanted) is not int or wanted < 1:
        return build_component(config.trainer).placed(world), []

    placed = build_component(config.trainer, batch_size="auto").placed(world)
    share = sequences_per_rank(placed.global_batch_size, placed.n_ranks)
    fitting = next(size for size in divisors(share) if size <= wanted)
    notes = []
    if fitting != wanted:
        notes.append(
            f"trainer.batch_size={wanted} does not divide the {share} sequences per step of each of the "
            f"{placed.n_ranks} devices; using trainer.batch_size={fitting} instead"
        )
    return replace(placed, batch_size=fitting), notes


def check_model(
    model: "ModelSettings", callbacks: "Sequence[Callback]", frozen: Sequence[str]
) -> None:
    """Raise UserError if the pictures do not fit the model, or if a prefix in `frozen` does not match any weight."""
    from gptmini.training.callbacks.pictures import Pictures

    for callback in callbacks:
        if isinstance(callback, Pictures):
            callback.check(model)
    if not frozen:
        return

    from gptmini.model.adapting import freeze
    from gptmini.model.gpt import meta_gpt

    freeze(meta_gpt(model.with_vocab_size(1)), frozen)


def _callbacks(parts: "DictConfig") -> "list[Callback]":
    from gptmini.training.callbacks.samples import Samples
    from gptmini.training.trainer import check_callback

    callbacks = []
    for name, made in _made(parts, "callbacks").items():
        callback = check_callback(name, made)
        if isinstance(callback, Samples):
            callback.key = f"callbacks.{name}"
        callbacks.append(callback)
    return callbacks


def _made(parts: "DictConfig", group: str) -> Mapping[str, Any]:
    from omegaconf import OmegaConf

    if parts is None:
        return {}
    if not OmegaConf.is_dict(parts):
        raise UserError(f"{group} must be null or a mapping of parts, got {shown(parts)}")
    made = {}
    for name, part in parts.items():
        if part is None:
            continue
        key = f"{group}.{name}"
        if key in known_keys() and not OmegaConf.is_dict(part):
            raise UserError(f"{key} must be a mapping, or null to turn it off, got {shown(part)}")
        if not OmegaConf.is_dict(part) or "_target_" not in part:
            if key in known_keys():
                raise UserError(unknown_key(key))
            close = nearest_key(key)
            hint = f"; or did you mean {close}?" if close else ""
            raise UserError(
                f"{key} must name its class with the key _target_, got {shown(part)}{hint}"
            )
        made[str(name)] = build_component(part)
    return made


def run_name(config: "DictConfig", typed: "Typed") -> str:
    """Return the default name of a run: the name of its experiment or its text."""
    experiment = typed.choices.get("experiment")
    data = config.data
    path = data.get("path")
    is_file = isinstance(path, str) and Path(path).expanduser().is_file()
    if experiment is not None:
        name = experiment.replace("/", "-")
    elif isinstance(data.get("dataset"), str):
        name = Path(data.dataset).name
    elif typed.choices["data"] == "text" and is_file:
        name = Path(path).name.partition(".")[0]
    else:
        name = typed.choices["data"] or ""

    # RootSettings refuses these names, and the user has not chosen one.
    return "text" if name in ("", "..", "latest") else name.replace("\\", "-")
