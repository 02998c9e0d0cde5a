"""Functions that load the model configurations in configs/model/ from Python."""

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
    known = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    if name not in known:
        raise UserError(f"a preset must be one of {', '.join(known)}, got {name!r}")
    return GPTConfig(**_settings_of(name) | changes, vocab_size=vocab_size)


def _settings_of(name: str) -> dict[str, Any]:
    own = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    defaults = own.pop("defaults", ["_self_"])
    own.pop("_target_", None)

    settings = {}
    for default in defaults:
        settings |= own if default == "_self_" else _settings_of(default)
    return settings
