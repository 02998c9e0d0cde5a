"""The GPT: its configuration, modules and loss.

Each name is imported at its first use. Therefore gptmini can check a configuration without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptmini.model.config import GPTConfig as GPTConfig
    from gptmini.model.config import ModelSettings as ModelSettings
    from gptmini.model.gpt import GPT as GPT
    from gptmini.model.gpt import new_gpt as new_gpt
    from gptmini.model.loss import next_token_loss as next_token_loss
    from gptmini.model.loss import training_loss as training_loss
    from gptmini.model.presets import preset as preset

_HOMES = {
    "GPT": "gptmini.model.gpt",
    "GPTConfig": "gptmini.model.config",
    "ModelSettings": "gptmini.model.config",
    "new_gpt": "gptmini.model.gpt",
    "next_token_loss": "gptmini.model.loss",
    "preset": "gptmini.model.presets",
    "training_loss": "gptmini.model.loss",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
