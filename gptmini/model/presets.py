"""The configurations of configs/model/ for Python, by their names."""

from typing import Any

import yaml

from gptmini.files import CONFIGS
from gptmini.model.config import GPTConfig
from gptmini.user_error import UserError

FOLDER = CONFIGS / "model"


def preset(name: str, *, vocab_size: int, **changes: Any) -> GPTConfig:
    """The configuration of a GPT that the option model=NAME of the command line stands for, with changes.

    Args:
        name: of a file in configs/model/, as tiny.
        vocab_size: number of the tokenizer's ids.
        changes: other values for fields of GPTConfig.

    Raises UserError: there is no such file. Raises pydantic.ValidationError: as GPTConfig.
    """
    known = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    if name not in known:
        raise UserError(f"a preset must be one of {', '.join(known)}, got {name!r}")
    return GPTConfig(**_settings_of(name) | changes, vocab_size=vocab_size)


def _settings_of(name: str) -> dict[str, Any]:
    """The settings of a file in configs/model/, laid over those of the files that its defaults name."""
    own = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    defaults = own.pop("defaults", ["_self_"])
    own.pop("_target_", None)

    settings = {}
    for default in defaults:
        settings |= own if default == "_self_" else _settings_of(default)
    return settings
