"""The GPT: its configuration, modules and loss.

Each name is imported at its first use. Therefore gptmini can check a configuration without importing torch.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names

if TYPE_CHECKING:
    from gptmini.model.config import GPTConfig as GPTConfig
    from gptmini.model.config import ModelSettings as ModelSettings
    from gptmini.model.gpt import GPT as GPT
    from gptmini.model.gpt import new_gpt as new_gpt
    from gptmini.model.loss import next_token_loss as next_token_loss
    from gptmini.model.loss import training_loss as training_loss
    from gptmini.model.presets import preset as preset
else:
    __getattr__ = lazy_names(__name__)
