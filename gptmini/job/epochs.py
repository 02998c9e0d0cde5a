"""Implement the key epochs=: compute the number of steps of a new run from its tokens."""

import math
from typing import TYPE_CHECKING, Any

from gptmini.training.settings import Settings

if TYPE_CHECKING:
    from gptmini.data import TokenStore


def steps_for_epochs(settings: Settings, store: "TokenStore") -> dict[str, Any]:
    """Return trainer.max_steps by its key, for build_settings. The result is empty if the run does not set epochs=.

    max_steps = ceil(epochs * training tokens / (global_batch_size * context_length)). A resumed run keeps its number of
    steps.
    """
    root = settings.root
    if root.epochs is None or root.resume is not None:
        return {}
    tokens_a_step = settings.trainer.global_batch_size * settings.model.context_length
    return {
        "trainer.max_steps": math.ceil(root.epochs * store.n_tokens("train") / tokens_a_step),
    }
