"""Replace the word auto in the settings of a new run, when its tokens are open, by values for its number of passes."""

import math
from collections.abc import Collection

from gptmini.configuration.building import build_settings
from gptmini.console.numbers import rounded, with_prefix
from gptmini.data import TokenStore
from gptmini.job.tokens import VOCABULARY
from gptmini.training import Settings, n_block_weights, recipe_for, steps_for


def with_recipe(
    settings: Settings, store: TokenStore, auto: Collection[str]
) -> tuple[Settings, list[str]]:
    """Return the settings with numbers for all keys that are auto, and lines with the values of the keys in `auto`.

    epochs= determines the number of steps. With init_from=, the other values are those for one pass, because weight
    decay pulls the trained weights towards zero.
    """
    n_bytes = store.n_bytes("train")
    tokens_a_step = settings.trainer.global_batch_size * settings.model.context_length
    n_steps = settings.trainer.max_steps
    if settings.root.epochs is not None:
        n_steps = math.ceil(settings.root.epochs * store.n_tokens("train") / tokens_a_step)
    elif "trainer.max_steps" in settings.auto_keys:
        n_steps = steps_for(n_bytes, tokens_a_step)
    passes = n_steps * tokens_a_step / store.n_tokens("train")

    config = settings.model.with_vocab_size(store.tokenizer.n_vocab)
    is_new = settings.root.init_from is None
    recipe = recipe_for(
        passes if is_new else 1.0,
        n_block_weights(config) / n_bytes,
        n_steps,
        averages="trainer.ema_steps" in settings.auto_keys
        or settings.trainer.ema_steps is not None,
    )
    values = {"trainer.max_steps": n_steps, **recipe}
    changes = {key: values[key] for key in settings.auto_keys}
    # A resumed run may change its number of steps. A stored epochs= would then be wrong.
    changes |= {"epochs": None, "trainer.max_steps": n_steps}
    settings = build_settings(settings.plain, changes)

    if not auto:
        return settings, []
    parts = []
    for key in sorted(auto):
        group, _, name = key.partition(".")
        value = store.tokenizer.n_vocab if key == VOCABULARY else settings.plain[group][name]
        parts.append(f"{name} {'null' if value is None else value}")
    reason = f"{rounded(passes)} passes over {with_prefix(n_bytes, 'B')} of text"
    if not is_new:
        reason = f"{rounded(passes)} passes; as for one pass, because init_from= is set"
    return settings, [f"values for {reason}:", ", ".join(parts)]
