"""A model measured on a text: loss, perplexity and bits per byte with their intervals, in plain values."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gptmini.data.store import tokens_per_byte_of
from gptmini.evaluation.intervals import (
    N_DRAWS,
    SHARE,
    Interval,
    compare,
    interval_of_bits,
    interval_of_loss,
)
from gptmini.evaluation.score import Evaluation, Sums, exponential, score
from gptmini.evaluation.texts import HeldOutText
from gptmini.evaluation.windows import documents_alone, stream
from gptmini.model import GPT
from gptmini.tokenizer import Tokenizer, beginning_of, of_ids
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
    evaluation: Evaluation  # of the whole text
    tokens_per_byte: float  # with which the bits per byte were computed
    sums: Sums  # over the parts of the text

    @property
    def n_bytes(self) -> int:
        """UTF-8 bytes of the scored tokens."""
        return int(self.sums.n_bytes.sum())


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
        alone: whether each document is scored alone, behind beginning_of the tokenizer, which must be an id; otherwise
            all documents are scored in one stream.
        stride: ids between the beginnings of windows of a stream; None for windows that do not overlap.
        batch_size: windows at once.
        on_batch: is told after each batch how many tokens are scored, and how many there are.

    Raises UserError: the text and the tokenizer do not fit, or no token with text in it is scored.
    """
    tokenizer = trained.tokenizer
    sizes = {"context_length": trained.model.config.context_length, "batch_size": batch_size}
    if alone:
        documents = text.documents(tokenizer)
        # As lm-evaluation-harness does.
        sizes["context_length"] = trained.model.config.longest_input
        tokens_per_byte = None  # known when the documents are scored
        first = beginning_of(tokenizer)
        assert first is not None
        name = tokenizer.decode([first])
        passages = [documents_alone(documents, first=first, first_named=name, **sizes)]
    else:
        excerpts = text.streams(tokenizer)
        tokens_per_byte = tokens_per_byte_of(excerpts)  # of the whole text, as in a validation
        passages = [stream(excerpt, stride=stride, **sizes) for excerpt in excerpts]

    n_tokens = sum(passage.n_tokens for passage in passages)
    tally, sums = score(
        trained.model,
        passages,
        byte_lengths=tokenizer.byte_lengths(),
        on_batch=lambda n_done: on_batch(n_done, n_tokens),
    )
    n_bytes = int(sums.n_bytes.sum())
    if not n_bytes:
        reason = "" if alone else " behind its first token, which nothing predicts in a stream"
        raise UserError(f"{text.name} must have text{reason}, among the tokens that are read")

    if tokens_per_byte is None:
        tokens_per_byte = n_tokens / n_bytes
    units = dict.fromkeys(passage.unit for passage in passages)
    return Measured(
        path=trained.path,
        convention=passages[0].convention,
        unit=" and ".join(units),
        evaluation=tally.evaluation(tokens_per_byte),
        tokens_per_byte=tokens_per_byte,
        sums=sums,
    )


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
        "models": [_figures(model) for model in measured],
    }
    if len(measured) == 2:
        report["comparison"] = _comparison(first, measured[1])
    return report


def _figures(model: Measured) -> dict[str, Any]:
    """What is known of a model's predictions, and the figures with their intervals."""
    loss = model.evaluation.loss
    bits = model.evaluation.bits_per_byte
    of_loss = interval_of_loss(model.sums)
    of_bits = _scaled(interval_of_bits(model.sums), model)

    return {
        "model": str(model.path),
        "convention": model.convention,
        "tokens": model.evaluation.n_tokens,
        "bytes": model.n_bytes,
        "tokens_per_byte": model.tokens_per_byte,
        "loss": _figure(loss, of_loss),
        "perplexity": _figure(loss, of_loss, exponential),
        "bits_per_byte": _figure(bits, of_bits),
    }


def _comparison(first: Measured, second: Measured) -> dict[str, Any]:
    """How much better or worse the second model is, in bits per byte."""
    if first.n_bytes != second.n_bytes:
        raise UserError(
            f"{first.path} and {second.path} must be compared on the same text, got {first.n_bytes:,} and "
            f"{second.n_bytes:,} bytes of it"
        )
    comparison = compare(first.sums, second.sums)
    difference = second.evaluation.bits_per_byte - first.evaluation.bits_per_byte
    figure = _figure(difference, _scaled(comparison.interval, first))
    return {
        "bits_per_byte": figure["value"],
        "interval": figure["interval"],
        "share_won_by_first": comparison.share_won,
    }


def _scaled(interval: Interval | None, model: Measured) -> Interval | None:
    """An interval of bits for each byte of the scored tokens, by the tokens per byte of the model's evaluation."""
    if interval is None:
        return None
    factor = model.tokens_per_byte * model.n_bytes / model.evaluation.n_tokens
    return Interval(interval.low * factor, interval.high * factor)


def _figure(
    value: float, interval: Interval | None, function: Callable[[float], float] = float
) -> dict[str, Any]:
    """A rising function of a value and of the ends of its interval, which a text of one part does not have."""
    ends = None if interval is None else [function(end) for end in interval]
    return {"value": function(value), "interval": ends}


def scores_documents_alone(
    models: Sequence[TrainedModel], *, per_document: bool, has_stride: bool
) -> bool:
    """Whether each document is scored alone: where that is asked for, or models of different tokenizers are compared.

    Raises UserError: a tokenizer has no id behind which a document could stand.
    """
    tokenizers = [of_ids(trained.tokenizer.to_dict()) for trained in models]
    have_same = all(state == tokenizers[0] for state in tokenizers)
    if have_same and not per_document:
        return False

    if has_stride:
        raise UserError("--stride needs models with the same tokenizer")
    for trained in models:
        if beginning_of(trained.tokenizer) is None:
            raise UserError(
                f"the tokenizer of {trained.path} must have an end-of-text, behind which each document is scored; "
                "tokenizer=char has one only if its text had several documents"
            )
    return True
