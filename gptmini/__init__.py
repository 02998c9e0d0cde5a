"""Train a GPT on any text on one machine, watch the training, and sample from the model.

Each public name is imported when it is first used, so `import gptmini` alone does not import torch.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names
from gptmini.system.version import __version__

if TYPE_CHECKING:
    from gptmini.attention import CausalMultiHeadAttention as CausalMultiHeadAttention
    from gptmini.data import batches as batches
    from gptmini.data import prepare as prepare
    from gptmini.evaluation import evaluate as evaluate
    from gptmini.generation import chat as chat
    from gptmini.generation import generate as generate
    from gptmini.generation import generate_stream as generate_stream
    from gptmini.job.result import TrainingResult
    from gptmini.loading import load as load
    from gptmini.model import GPT as GPT
    from gptmini.model import GPTConfig as GPTConfig
    from gptmini.model import preset as preset
    from gptmini.system.errors import UserError as UserError
else:
    __getattr__ = lazy_names(__name__)

__all__ = [
    "GPT",
    "CausalMultiHeadAttention",
    "GPTConfig",
    "UserError",
    "__version__",
    "batches",
    "chat",
    "evaluate",
    "generate",
    "generate_stream",
    "load",
    "prepare",
    "preset",
    "train",
]


def train(*overrides: str) -> "TrainingResult":
    """Train like `gptmini train OVERRIDES`. Return the folder of the run, its best evaluation and its number of steps.

    Raises UserError if the user made a mistake. The message is the same as the message of the command.
    """
    from gptmini.job.api import train_from_python

    return train_from_python(overrides)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
