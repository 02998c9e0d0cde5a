"""Evaluating a model on a text: the number of tokens that it reads at once, and the bytes of the text."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import normalizers

from gptmini.data import TextCorpus, prepare
from gptmini.evaluation import measurement
from gptmini.evaluation.held_out import PreparedText, TextFiles
from gptmini.evaluation.measurement import TrainedModel, measure
from gptmini.loading import builder_of
from gptmini.tokenizer import CharTokenizer, LibraryTokenizer, byte
from interop.library_tokenizers import learned, of_sentence_piece
from sizes import CONTEXT, MODERN
from toys import wide_gpt

LETTERS = CharTokenizer("abcdefghij", end_of_text=True)
DOCUMENTS = ["the hut", "e\u0301te\u0301 is the", "\u4e2d or e\u0301"]


class Texts:
    """Documents with up to twice as many letters as the model has positions."""

    name = "letters"
    notes = ()

    def documents(self, tokenizer):
        lengths = np.array([CONTEXT, 2 * CONTEXT, 3])
        draw = np.random.default_rng(0)
        return [draw.integers(10, size=n) for n in lengths], lengths


def trained_model(tokenizer, **sizes):
    model = wide_gpt(MODERN | {"vocab_size": tokenizer.n_vocab} | sizes).eval()
    return TrainedModel(Path("run"), model, tokenizer)


def measured(trained, text):
    return measure(
        trained,
        text,
        per_document=True,
        batch_size=2,
        on_batch=lambda n_done, n_tokens: None,
    )


def test_documents_alone_are_given_all_positions_of_a_model_that_was_trained_on_fewer():
    losses = []
    for lengths in ({}, {"context_length": 5, "full_context_length": CONTEXT}):
        losses.append(measured(trained_model(LETTERS, **lengths), Texts()).evaluation.loss)
    assert losses[0] == losses[1]


def tokenizer_that(change):
    """Return a tokenizer whose tokens do not have the bytes of the text."""
    made = of_sentence_piece()  # adds a space
    if change == "lacks characters":
        made.model.byte_fallback = False
    if change == "composes accents":
        made = learned("the hut or \u00e9t\u00e9", special=["</s>"])
        made.normalizer = normalizers.NFC()
    sizes = {"n_vocab": made.get_vocab_size(), "end_of_text": made.token_to_id("</s>")}
    return LibraryTokenizer(made.to_str(), **sizes)


@pytest.mark.parametrize("change", ["adds a space", "lacks characters", "composes accents"])
@pytest.mark.parametrize("is_prepared", [False, True])
def test_the_bytes_are_those_of_the_documents(tmp_path, change, is_prepared):
    """As in lm-evaluation-harness, whose bits per byte divide by len(document.encode())."""
    tokenizer = tokenizer_that(change)
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"text": document}) for document in DOCUMENTS))
    text = TextFiles([file], "text", None)
    if is_prepared:
        (tmp_path / "train.txt").write_text(DOCUMENTS[0])
        corpus = TextCorpus(tmp_path / "train.txt", 0.5, val_path=file)
        store, _ = prepare(corpus, builder_of(tokenizer), tmp_path / "data")
        text = PreparedText(store.folder, "val", None)

    own = measured(trained_model(tokenizer), text)
    other = measured(trained_model(byte([])), text)
    lengths = [len(document.encode()) for document in DOCUMENTS]
    bits = own.sums.nats.sum() / math.log(2) / sum(lengths)
    assert own.evaluation.bits_per_byte == pytest.approx(bits, rel=1e-6)
    assert own.n_bytes == other.n_bytes == sum(lengths)
    assert own.sums.n_bytes.sum() == pytest.approx(sum(lengths))
    if not is_prepared or change == "adds a space":
        assert own.sums.n_bytes.tolist() == lengths
    comparison = measurement.report_of(text, [own, other])["comparison"]
    assert comparison["share_won_by_first"] is not None
