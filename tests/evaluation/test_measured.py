"""Evaluating a model on a text: the number of tokens that it reads at once."""

from pathlib import Path

import numpy as np

from gptmini.evaluation.measured import Convention, TrainedModel, measure
from gptmini.tokenizer import CharTokenizer
from sizes import CONTEXT, MODERN
from toys import wide_gpt

LETTERS = CharTokenizer("abcdefghij", end_of_text=True)


class Texts:
    """Documents with up to twice as many letters as the model has positions."""

    name = "letters"
    notes = ()

    def documents(self, tokenizer):
        draw = np.random.default_rng(0)
        return [draw.integers(10, size=n) for n in (CONTEXT, 2 * CONTEXT, 3)]


def test_documents_alone_are_given_all_positions_of_a_model_that_was_trained_on_fewer():
    losses = []
    for lengths in ({}, {"context_length": 5, "full_context_length": CONTEXT}):
        model = wide_gpt(MODERN | lengths).eval()
        trained = TrainedModel(Path("run"), Path("run"), model, LETTERS, None)
        measured = measure(
            trained,
            Texts(),
            convention=Convention("documents"),
            stride=None,
            batch_size=2,
            on_batch=lambda n_done, n_tokens: None,
        )
        losses.append(measured.evaluation.loss)
    assert losses[0] == losses[1]
