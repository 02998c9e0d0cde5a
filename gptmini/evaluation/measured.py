"""A model measured on a text: loss, perplexity and bits per byte with their intervals, in plain values."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gptmini.evaluation.conventions import Plan, each_document_alone, joined, one_stream
from gptmini.evaluation.intervals import (
    N_DRAWS,
    SHARE,
    Interval,
    compare,
    interval_of_bits,
    interval_of_loss,
)
from gptmini.evaluation.packed import exponential
from gptmini.evaluation.sums import Sums, sums_of_parts
from gptmini.evaluation.texts import HeldOutText, Streams
from gptmini.model import GPT
from gptmini.tokenizer import Tokenizer
from gptmini.user_error import UserError


class TrainedModel(NamedTuple):
    """A model that is evaluated."""

    run: Path  # the run, checkpoint file or exported folder that was named
    path: Path  # its checkpoint, or exported folder
    model: GPT
    tokenizer: Tokenizer
    data: Path | None  # the prepared folder that it was trained on, if its checkpoint names one


class Measured(NamedTuple):
    """The evaluation of one model."""

    path: Path  # of its checkpoint, or exported folder
    convention: str  # in words
    unit: str  # what a part of the text is, in the plural
    sums: Sums
    # Tokens for each byte of the whole text, by which the loss of a stream becomes bits per byte; None where documents
    # are scored alone, whose bytes are exactly those of the scored tokens.
    tokens_per_byte: float | None
    n_words: int | None  # of documents that are scored alone

    @property
    def n_bytes(self) -> int:
        """UTF-8 bytes of the scored tokens."""
        return int(self.sums.n_bytes.sum())

    def scaled_bits(self, bits: float) -> float:
        """The bits per byte that are shown for bits per byte of the scored tokens; equal where documents stand alone.

        A stream's bits per byte are the loss times the tokens per byte of the whole text, as a run validates: the
        first token counts, though nothing predicts it.
        """
        if self.tokens_per_byte is None:
            return bits
        bytes_per_token = self.sums.n_bytes.sum() / self.sums.n_tokens.sum()
        return float(bits * bytes_per_token * self.tokens_per_byte)


def measure(
    trained: TrainedModel,
    text: HeldOutText,
    *,
    alone: bool,
    stride: int | None,
    batch_size: int,
    on_batch: Callable[[int, int], None],
) -> Measured:
    """Evaluate a model on a text.

    Args:
        trained: the model, on the device that computes.
        text: what it is evaluated on.
        alone: whether each document is scored alone, behind an end-of-text, which the tokenizer must have; otherwise
            all documents are scored in one stream.
        stride: ids between the beginnings of windows of a stream; None for windows that do not overlap.
        batch_size: windows at once.
        on_batch: is told after each batch how many tokens are scored, and how many there are.

    Raises UserError: the text and the tokenizer do not fit, or no token with text in it is scored.
    """
    n_words = None
    tokens_per_byte = None
    if alone:
        documents = text.documents(trained.tokenizer)
        n_words = _count_words(trained.tokenizer, documents)
        plan = _plan_of_documents(trained, documents)
    else:
        streams = text.streams(trained.tokenizer)
        tokens_per_byte = streams.tokens_per_byte
        plan = _plan_of_streams(trained, streams, stride)

    sums = sums_of_parts(
        trained.model,
        plan.windows,
        batch_size=batch_size,
        on_batch=lambda n_tokens: on_batch(n_tokens, plan.n_tokens),
    )
    measured = Measured(
        path=trained.path,
        convention=plan.convention,
        unit=plan.unit,
        sums=sums,
        tokens_per_byte=tokens_per_byte,
        n_words=n_words,
    )
    if not measured.n_bytes:
        reason = "" if alone else " behind its first token, which nothing predicts in a stream"
        raise UserError(f"{text.name} must have text{reason}, among the tokens that are read")
    return measured


def report_of(text: HeldOutText, measured: Sequence[Measured]) -> dict[str, Any]:
    """All figures of one model, or of two and of their comparison, in plain values.

    Raises UserError: two models were evaluated on different numbers of bytes.
    """
    first = measured[0]
    report: dict[str, Any] = {
        "text": text.name,
        "intervals": {
            "share": SHARE,
            "draws": N_DRAWS,
            "parts": len(first.sums.nats),
            "part": first.unit,
        },
        "models": [],
    }
    for model in measured:
        figures = {
            "model": str(model.path),
            "convention": model.convention,
            "tokens": int(model.sums.n_tokens.sum()),
            "bytes": model.n_bytes,
            **_figures(model),
        }
        report["models"].append(figures)

    if len(measured) == 2:
        report["comparison"] = _comparison(first, measured[1])
    return report


def _plan_of_documents(trained: TrainedModel, documents: Sequence[np.ndarray]) -> Plan:
    """What is scored where each document stands alone."""
    end_of_text = trained.tokenizer.end_of_text
    assert end_of_text is not None  # as measure asks for
    return each_document_alone(
        documents,
        end_of_text=end_of_text,
        context_length=trained.model.config.context_length,
        byte_lengths=trained.tokenizer.byte_lengths(),
    )


def _plan_of_streams(trained: TrainedModel, streams: Streams, stride: int | None) -> Plan:
    """What is scored of the streams of a text; UserError for a stride that is longer than a window."""
    context_length = trained.model.config.context_length
    if stride is not None and stride > context_length:
        raise UserError(f"--stride must be at most the context of {context_length}, got {stride}")

    plans = []
    for stream in streams.streams:
        plan = one_stream(
            stream.ids,
            stream.n_ids,
            stream.document_ends,
            stride=None if stride == context_length else stride,
            context_length=context_length,
            byte_lengths=trained.tokenizer.byte_lengths(),
        )
        plans.append(plan)
    return joined(plans)


def _count_words(tokenizer: Tokenizer, documents: Sequence[np.ndarray]) -> int:
    """Words of documents, as lm-evaluation-harness counts them: what white space separates."""
    texts = (tokenizer.decode(ids.tolist()) for ids in documents)
    return sum(len(re.split(r"\s+", text)) for text in texts)


def _figures(model: Measured) -> dict[str, dict[str, Any]]:
    """The figures of a model by their names."""
    sums = model.sums
    loss_interval = interval_of_loss(sums)
    bits_interval = interval_of_bits(sums)
    figures = {
        "loss": _figure(float, sums.loss, loss_interval),
        "perplexity": _figure(exponential, sums.loss, loss_interval),
        "bits_per_byte": _figure(model.scaled_bits, sums.bits_per_byte, bits_interval),
    }
    if model.n_words is not None:
        nats_per_bit = math.log(2) * model.n_bytes / model.n_words

        def per_word(bits: float) -> float:
            return exponential(nats_per_bit * bits)

        figures["word_perplexity"] = _figure(per_word, sums.bits_per_byte, bits_interval)
    return figures


def _comparison(first: Measured, second: Measured) -> dict[str, Any]:
    """How much better or worse the second model is, in bits per byte."""
    if first.n_bytes != second.n_bytes:
        raise UserError(
            f"{first.path} and {second.path} must be compared on the same text, got {first.n_bytes:,} and "
            f"{second.n_bytes:,} bytes of it"
        )
    comparison = compare(first.sums, second.sums)
    difference = _figure(first.scaled_bits, comparison.difference, comparison.interval)
    return {
        "bits_per_byte": difference["value"],
        "interval": difference["interval"],
        "share_won_by_first": comparison.share_won,
    }


def _figure(
    function: Callable[[float], float], value: float, interval: Interval | None
) -> dict[str, Any]:
    """A rising function of a value and of the ends of its interval, which a text of one part does not have."""
    ends = None if interval is None else [function(end) for end in interval]
    return {"value": function(value), "interval": ends}
