"""A run that begins with trained weights: what its configuration takes from their model, and what it may change."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError, shown
from gptmini.commands.configuration import key_typed, read_if_yaml, used_files
from gptmini.commands.parts import build_from

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gptmini.loading import Source
    from gptmini.model import GPT

# Variable of the environment that holds, as JSON, the path that each name of init_from stands for in a command.
FOUND = "GPTMINI_INIT_FROM"
GPT_CONFIG = "gptmini.model.ModelSettings"
# What the configurations of tokenizers call that are not learned from a text.
NOT_LEARNED = (
    "gptmini.tokenizer.ByteSettings",
    "gptmini.tokenizer.GPT2Settings",
    "gptmini.loading.OfModelSettings",
)


def take_from_source(
    command: str, config: "DictConfig", overrides: Sequence[str], config_dir: str | None
) -> None:
    """Fill in what the model of init_from decides: sizes, tokenizer, where its weights lie, and their digest.

    A configuration without init_from, or of a resumed run, which has all of this already, stays as it is.

    Args:
        command: the name of the root configuration.
        config: the composed configuration, which is changed.
        overrides: what was typed, KEY=VALUE each, without sweeps.
        config_dir: a folder of the user's own that adds options to the groups.

    Raises UserError: there is no such model, or a setting was asked for that its weights do not allow.
    """
    if config.resume is not None:
        return
    if config.init_from is None:
        if config.init_digest is not None:
            raise UserError(f"init_digest={config.init_digest} needs init_from, which is null")
        return

    from gptmini.loading import begin_digest, digest_of_weights

    source = _remembered_source(config.init_from)
    # settle_origin asks for the digest once libraries are imported and the text is prepared.
    begin_digest(source.path)

    asked = _asked_for(command, overrides, config_dir)
    settings = _settings(config, source, asked)
    if "tokenizer" in asked:
        _check_tokenizer(config, source)

    if config.init_digest is not None:
        digest = digest_of_weights(source.path)
        if digest != config.init_digest:
            raise UserError(
                f"the weights of init_from={source.path} must have init_digest={config.init_digest}, got {digest}"
            )
    config.init_from = str(source.path)
    config.model = {"_target_": GPT_CONFIG, **settings}
    config.tokenizer = {
        "_target_": "gptmini.loading.OfModelSettings",
        "path": str(source.path),
    }


def settle_origin(config: "DictConfig") -> dict[str, str] | None:
    """Path and digest of the weights that a run begins with, which the configuration names from then on.

    Returns None for new weights.
    Raises UserError: they are no path and no digest, as in a run folder that was changed by hand.
    """
    from gptmini.loading import digest_of_weights, is_digest

    path = config.get("init_from")  # a run of an earlier version has no such key
    if path is None:
        return None
    if type(path) is not str:
        raise UserError(f"init_from must be a path, got {shown(path)}")

    if config.init_digest is None and config.resume is None:
        config.init_digest = digest_of_weights(Path(path))
    digest = config.init_digest
    if not is_digest(digest):
        raise UserError(f"init_digest must be a SHA-256, got {shown(digest)}")
    return {"path": path, "digest": digest}


def initial_model(origin: dict[str, str] | None) -> "GPT | None":
    """The trained model that a run begins with; None for a run with new weights.

    Raises UserError: the weights are gone, damaged, or no longer those whose digest the run has written down.
    """
    if origin is None:
        return None

    from gptmini.loading import digest_of_weights, load_mapped

    path = Path(origin["path"])
    if not path.exists():
        raise UserError(f"init_from={path} must be there, and it is not")
    model = load_mapped(path)
    if digest_of_weights(path) != origin["digest"]:
        raise UserError(
            f"the weights of init_from={path} are no longer those that the run began with; begin a new run"
        )
    return model


@contextmanager
def remembering_sources() -> Iterator[None]:
    """Let each name of init_from stand for one model in all jobs of a command, also those in processes of their own.

    A name as runs/latest would lead elsewhere as soon as the first run of the command has begun.
    """
    if FOUND in os.environ:  # this process does a job of a command that has found the model
        yield
        return

    os.environ[FOUND] = "{}"
    try:
        yield
    finally:
        os.environ.pop(FOUND, None)


def _remembered_source(name: object) -> "Source":
    """The model that init_from names, or that the name stood for when the command began."""
    if FOUND not in os.environ or type(name) is not str:
        return _source_of(name)

    found = json.loads(os.environ[FOUND])
    source = _source_of(found.get(name, name))
    os.environ[FOUND] = json.dumps(found | {name: str(source.path)})
    return source


def _source_of(name: object) -> "Source":
    """The model that init_from names; UserError if there is none."""
    from gptmini.interop.hub import download_model, is_hub_name
    from gptmini.loading import find_source
    from gptmini.run_folder import named_run, seen_from_here

    if type(name) is not str or not name:
        raise UserError(f"init_from must name a run, a folder or a model, got {shown(name)}")
    if not Path(name).exists() and is_hub_name(name):
        folder = download_model(name)
        print(f"read {name} of the Hugging Face hub", file=sys.stderr)
        return find_source(folder)
    source = find_source(named_run(name))
    # The link runs/latest will lead elsewhere as soon as this run begins.
    return source._replace(path=seen_from_here(source.path.resolve()))


def _asked_for(command: str, overrides: Sequence[str], config_dir: str | None) -> set[str]:
    """The keys of the model and of the tokenizer that were asked for, typed or by an experiment; not mere defaults."""
    typed = {key_typed(line) for line in overrides}
    chosen = _files(command, overrides, config_dir)
    usual = _files(command, [], None)

    asked = {key for key in typed if key.partition(".")[0] in ("model", "tokenizer")}
    for name, (group, keys) in chosen.items():
        is_default = name in usual and group not in typed
        if not is_default:
            asked |= keys
    if any(key.startswith("tokenizer.") for key in asked):
        asked.add("tokenizer")
    return asked


def _files(
    command: str, overrides: Sequence[str], config_dir: str | None
) -> dict[str, tuple[str, set[str]]]:
    """By the name of each file of a configuration: its group, and its keys of the model and of the tokenizer."""
    files = {}
    for file in used_files(command, list(overrides), config_dir):
        keys = set()
        for key, value in read_if_yaml(file.path).items():
            full_name = f"{file.prefix}{key}"
            keys.add(full_name)
            if isinstance(value, dict):
                keys |= {f"{full_name}.{name}" for name in value}
        wanted = {key for key in keys if key.startswith(("model.", "tokenizer."))}
        files[file.name] = (file.name.partition("/")[0], wanted)
    return files


def _settings(config: "DictConfig", source: "Source", asked: set[str]) -> dict[str, Any]:
    """The settings of a model that begins with the weights of a source; UserError for one that cannot be."""
    from gptmini.model.adapting import ADAPTABLE

    if config.model.get("_target_") != GPT_CONFIG:
        raise UserError(
            f"model._target_ must be {GPT_CONFIG} for a run that begins with init_from={source.path}, got "
            f"{shown(config.model.get('_target_'))}"
        )

    settings = asdict(source.config)
    del settings["vocab_size"]
    for name in settings:
        if f"model.{name}" not in asked:
            continue

        value = config.model.get(name)
        if name in ADAPTABLE:
            settings[name] = value
        elif not _means_the_same(name, value, source):
            raise UserError(
                f"model.{name} must be {settings[name]}, as in the model of init_from={source.path}, got "
                f"{shown(value)}; only {' and '.join(ADAPTABLE)} may change"
            )

    longest = source.config.context_length
    wanted = settings["context_length"]
    if type(wanted) is int and wanted > longest:
        raise UserError(
            f"model.context_length must be at most {longest}, as in the model of init_from={source.path}, got {wanted}"
        )
    return settings


def _means_the_same(name: str, value: object, source: "Source") -> bool:
    """Whether a setting has the value that it has in a source; None stands for the usual size there."""
    usual = {"n_kv_heads": source.config.n_heads, "d_ff": 4 * source.config.d_model}
    has = getattr(source.config, name)
    if name in usual:
        value = usual[name] if value is None else value
        has = usual[name] if has is None else has
    return value == has


def _check_tokenizer(config: "DictConfig", source: "Source") -> None:
    """Raise UserError unless the tokenizer that was asked for is that of a source, and not learned from the text."""
    is_same = False
    if config.tokenizer.get("_target_") in NOT_LEARNED:
        builder = build_from(config.tokenizer).builder()
        is_same = builder([]).to_dict() == source.tokenizer.to_dict()
    if not is_same:
        raise UserError(
            f"the tokenizer must be that of the model of init_from={source.path}; leave out tokenizer=, or replace "
            f"that of an experiment by tokenizer=of_model tokenizer.path={source.path}"
        )
