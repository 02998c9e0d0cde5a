"""The GPT: its configuration, modules and loss.

Each name is imported at its first use. Therefore gptmini can check a configuration without importing torch.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names

if TYPE_CHECKING:
    from gptmini.model.adapting import adapt as adapt
    from gptmini.model.adapting import freeze as freeze
    from gptmini.model.config import NORM_EPS as NORM_EPS
    from gptmini.model.config import GPTConfig as GPTConfig
    from gptmini.model.config import ModelSettings as ModelSettings
    from gptmini.model.config import config_from_file as config_from_file
    from gptmini.model.gpt import GPT as GPT
    from gptmini.model.gpt import VOCABULARY as VOCABULARY
    from gptmini.model.gpt import in_eval_mode as in_eval_mode
    from gptmini.model.gpt import meta_gpt as meta_gpt
    from gptmini.model.gpt import new_gpt as new_gpt
    from gptmini.model.gpt_cache import GPTCache as GPTCache
    from gptmini.model.loss import next_token_loss as next_token_loss
    from gptmini.model.loss import split_rows as split_rows
    from gptmini.model.loss import training_loss as training_loss
    from gptmini.model.packed import dtype_of as dtype_of
    from gptmini.model.packed import is_packed as is_packed
    from gptmini.model.packed import pack as pack
    from gptmini.model.presets import preset as preset
else:
    __getattr__ = lazy_names(__name__)
