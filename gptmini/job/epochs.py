"""Implement the key epochs=: compute the number of steps of a new run from its tokens."""

import math
from typing import Any

from gptmini.data import TokenStore
from gptmini.training.settings import Settings


def steps_for_epochs(settings: Settings, store: TokenStore) -> dict[str, Any]:
    """Return the change, for build_settings, that replaces epochs by trainer.max_steps. Return {} without epochs=.

    max_steps = ceil(epochs * training tokens / (global_batch_size * context_length)). A resumed run keeps its steps.
    """
    root = settings.root
    if root.epochs is None or root.resume is not None:
        return {}
    tokens_a_step = settings.trainer.global_batch_size * settings.model.context_length
    n_steps = math.ceil(root.epochs * store.n_tokens("train") / tokens_a_step)
    # A resumed run may change its number of steps. A stored epochs= would then be wrong.
    return {"epochs": None, "trainer.max_steps": n_steps}
