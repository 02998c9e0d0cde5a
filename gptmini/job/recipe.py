"""Replace the word auto in the settings of a new run by values that suit the number of passes over its text."""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from gptmini.configuration.building import build_component, build_settings, component_of
from gptmini.console.numbers import rounded, with_prefix
from gptmini.data import Corpus, TokenStore
from gptmini.training import Settings, TextSettings, recipe_for, steps_for, vocabulary_for

T = TypeVar("T", bound=TextSettings)
VOCABULARY = "tokenizer.vocab_size"


def with_vocabulary(settings: T, corpus: Corpus) -> T:
    """Return the settings with a number for tokenizer.vocab_size, before the text is tokenised.

    The number of passes is estimated from the size of the text, so that gptmini prepare finds the same number.
    """
    if VOCABULARY not in settings.auto_keys or not corpus.is_text:
        return settings  # tokens have a vocabulary already
    plain = settings.plain
    model = build_component(component_of(plain, "model"))
    trainer = build_component(component_of(plain, "trainer"))
    n_bytes = corpus.bytes_to_train_on()
    tokens_a_step = model.context_length * trainer.global_batch_size
    n_steps = trainer.max_steps
    if "trainer.max_steps" in settings.auto_keys:
        n_steps = steps_for(n_bytes, tokens_a_step)
    n_vocab = vocabulary_for(n_bytes, n_steps * tokens_a_step, epochs=settings.root.epochs)
    return replace(
        settings,
        tokenizer=replace(settings.tokenizer, vocab_size=n_vocab),
        plain={**plain, "tokenizer": plain["tokenizer"] | {"vocab_size": n_vocab}},
    )


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

    recipe = recipe_for(1.0 if settings.root.init_from is not None else passes, n_steps)
    values = {VOCABULARY: store.tokenizer.n_vocab, "trainer.max_steps": n_steps, **recipe}
    changes = {key: values[key] for key in settings.auto_keys}
    # A resumed run may change its number of steps. A stored epochs= would then be wrong.
    changes |= {"epochs": None, "trainer.max_steps": n_steps}
    settings = build_settings(settings.plain, changes)

    if not auto:
        return settings, []
    parts = []
    for key in sorted(auto):
        group, _, name = key.partition(".")
        value = settings.plain[group][name]
        parts.append(f"{name} {'null' if value is None else value}")
    reason = f"{rounded(passes)} passes over {with_prefix(n_bytes, 'B')} of text"
    if settings.root.init_from is not None:
        reason = "trained weights, as for one pass"
    return settings, [f"values for {reason}:", ", ".join(parts)]
