"""Load the model configurations of configs/model/ in Python."""

from typing import Any

import yaml

from gptmini.model.config import GPTConfig
from gptmini.system.errors import UserError
from gptmini.system.files import CONFIGS

FOLDER = CONFIGS / "model"


def preset(name: str, *, vocab_size: int, **changes: Any) -> GPTConfig:
    """Return the model configuration of the command-line option model=NAME, with changes.

    Args:
        name: name of a file in configs/model/ without the ending, such as 'tiny'.
        vocab_size: number of ids of the tokenizer.
        changes: fields of GPTConfig to override.

    Raises UserError if the file does not exist, and pydantic.ValidationError if GPTConfig rejects the values.
    """
    names = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    if name not in names:
        raise UserError(f"a preset must be one of {', '.join(names)}, got {name!r}")
    settings = _settings_of(name) | {"dropout": 0.0}  # auto depends on a text
    return GPTConfig(**settings | changes, vocab_size=vocab_size)


def _settings_of(name: str) -> dict[str, Any]:
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    defaults = content.pop("defaults", ["_self_"])
    content.pop("_target_", None)

    settings = {}
    for default in defaults:
        settings |= content if default == "_self_" else _settings_of(default)
    return settings
