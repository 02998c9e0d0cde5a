"""Train a GPT on any text on one machine, watch the training, and sample from the model.

Each public name is imported when it is first used, so `import gptmini` alone does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gptmini.system.version import __version__

if TYPE_CHECKING:
    from gptmini.attention import CausalMultiHeadAttention
    from gptmini.data import prepare
    from gptmini.data.prepared.batches import batches
    from gptmini.evaluation import evaluate
    from gptmini.generation import generate, generate_stream
    from gptmini.job.result import TrainingResult
    from gptmini.loading import load
    from gptmini.model import GPT, GPTConfig, preset
    from gptmini.serving.conversation import chat
    from gptmini.system.errors import UserError

_HOMES = {
    "CausalMultiHeadAttention": "gptmini.attention",
    "GPT": "gptmini.model",
    "GPTConfig": "gptmini.model",
    "UserError": "gptmini.system.errors",
    "batches": "gptmini.data.prepared.batches",
    "chat": "gptmini.serving.conversation",
    "evaluate": "gptmini.evaluation",
    "generate": "gptmini.generation",
    "generate_stream": "gptmini.generation",
    "load": "gptmini.loading",
    "prepare": "gptmini.data",
    "preset": "gptmini.model",
}
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


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
