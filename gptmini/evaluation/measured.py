"""Evaluate models on a text and report loss, perplexity and bits per byte with intervals, as plain values."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from gptmini.data.store import tokens_per_byte_of
from gptmini.evaluation.intervals import (
    SHARE,
    Interval,
    compare,
    interval_of_bits,
    interval_of_loss,
    n_equal_parts,
)
from gptmini.evaluation.score import Evaluation, Sums, exponential, score
from gptmini.evaluation.texts import HeldOutText
from gptmini.evaluation.windows import documents_alone, only_document, stream
from gptmini.model import GPT
from gptmini.tokenizer import Tokenizer, bos_id_of, document_prefix, identity_of
from gptmini.user_error import UserError


class TrainedModel(NamedTuple):
    """A model to evaluate."""

    run: Path  # run, checkpoint file or exported folder, as given by the user
    path: Path  # the checkpoint file or exported folder of the model
    model: GPT
    tokenizer: Tokenizer
    data: Path | None  # prepared folder that the model was trained on, if its checkpoint names it


class Measured(NamedTuple):
    """The evaluation of one model."""

    path: Path  # checkpoint or exported folder
    convention: str  # description of the scoring convention
    unit: str  # name of the parts of the text, in the plural
    evaluation: Evaluation  # loss, number of tokens and bits per byte of the entire text
    tokens_per_byte: float  # number of tokens per byte, used to compute bits per byte
    n_bytes: int  # UTF-8 bytes of the scored text; in a stream, of the scored tokens
    sums: Sums  # sums over each part of the text


class Convention(NamedTuple):
    """How models are scored on a text."""

    # "stream": all documents in one stream.
    # "documents": each document alone, after the id that bos_id_of returns for the tokenizer. It must not be None.
    # "single": the only document of the text, without special tokens.
    unit: Literal["stream", "documents", "single"]
    # UTF-8 bytes at the start of the only document that are read, but not scored.
    n_skipped_bytes: int = 0


def measure(
    trained: TrainedModel,
    text: HeldOutText,
    *,
    convention: Convention,
    stride: int | None,
    batch_size: int,
    on_batch: Callable[[int, int], None],
) -> Measured:
    """Evaluate a model on a text.

    Args:
        trained: the model, on the device to compute on.
        text: the text to evaluate on.
        convention: how to score the documents.
        stride: number of ids from the start of a window to the start of the next window. None: windows do not overlap.
        batch_size: windows per batch.
        on_batch: called after each batch with the number of scored tokens and the total number of tokens.

    Raises UserError if the tokenizer does not fit the text, or if no scored token has text.
    """
    tokenizer = trained.tokenizer
    sizes = {"context_length": trained.model.config.context_length, "batch_size": batch_size}
    tokens_per_byte = None  # if it stays None, it is known after scoring
    lengths = None  # bytes of each document, if the documents are not in a stream
    if convention.unit == "documents":
        documents, lengths = text.documents(tokenizer)
        # lm-evaluation-harness also uses windows of the longest input.
        sizes["context_length"] = trained.model.config.longest_input
        first = bos_id_of(tokenizer)
        assert first is not None
        name = tokenizer.decode([first])
        passages = [documents_alone(documents, first=first, first_named=name, **sizes)]
    elif convention.unit == "single":
        (ids,), lengths = text.documents(tokenizer)
        passages = [
            only_document(
                ids,
                prefix=document_prefix(tokenizer),
                byte_ends=_byte_ends(tokenizer, ids),
                n_skipped_bytes=convention.n_skipped_bytes,
                **sizes,
            )
        ]
    else:
        excerpts = text.streams(tokenizer)
        tokens_per_byte = tokens_per_byte_of(excerpts)  # of the entire text, as in validation
        passages = [stream(excerpt, stride=stride, **sizes) for excerpt in excerpts]

    n_tokens = sum(passage.n_tokens for passage in passages)
    tally, sums = score(
        trained.model,
        passages,
        byte_lengths=tokenizer.byte_lengths(),
        on_batch=lambda n_done: on_batch(n_done, n_tokens),
    )
    n_bytes = int(sums.n_bytes.sum())
    ends = passages[0].ends
    if lengths is not None:
        # The bytes of the tokens may differ, because some tokenizers add a space or replace characters.
        n_bytes = round(lengths.sum()) - convention.n_skipped_bytes
    if lengths is not None and ends is not None:
        has_tokens = np.diff(ends, prepend=0) > 0  # (n_documents,)
        sums = sums._replace(n_bytes=lengths[has_tokens])
    if not n_bytes:
        raise UserError(
            f"{text.name} must have text after its first token, because the first token is not scored; use a larger "
            "--max-tokens or a different text"
        )

    if tokens_per_byte is None:
        tokens_per_byte = n_tokens / n_bytes
    units = dict.fromkeys(passage.unit for passage in passages)
    return Measured(
        path=trained.path,
        convention=passages[0].convention,
        unit=" and ".join(units),
        evaluation=tally.evaluation(tokens_per_byte),
        tokens_per_byte=tokens_per_byte,
        n_bytes=n_bytes,
        sums=sums,
    )


def report_of(text: HeldOutText, measured: Sequence[Measured]) -> dict[str, Any]:
    """Return all results of one model, or of two models with their comparison, as plain values."""
    first = measured[0]
    report: dict[str, Any] = {
        "text": text.name,
        "intervals": {
            "share": SHARE,
            "parts": len(first.sums.nats),
            "part": first.unit,
            "equal_parts": n_equal_parts(first.sums.n_bytes),
        },
        "models": [_figures(model) for model in measured],
    }
    if len(measured) == 2:
        report["comparison"] = _comparison(first, measured[1])
    return report


def _figures(model: Measured) -> dict[str, Any]:
    """Return the results of a model with their confidence intervals."""
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
    """Return the difference in bits per byte between the second and the first model."""
    comparison = compare(first.sums, second.sums)
    difference = second.evaluation.bits_per_byte - first.evaluation.bits_per_byte
    figure = _figure(difference, _scaled(comparison.interval, first))
    return {
        "bits_per_byte": figure["value"],
        "interval": figure["interval"],
        "share_won_by_first": comparison.share_won,
    }


def _scaled(interval: Interval | None, model: Measured) -> Interval | None:
    """Convert an interval of bits per byte of the parts to bits per byte of the text."""
    if interval is None:
        return None
    factor = model.tokens_per_byte * float(model.sums.n_bytes.sum()) / model.evaluation.n_tokens
    return Interval(interval.low * factor, interval.high * factor)


def _figure(
    value: float, interval: Interval | None, function: Callable[[float], float] = float
) -> dict[str, Any]:
    """Apply an increasing function to a value and to both ends of its confidence interval. The interval may be None."""
    ends = None if interval is None else [function(end) for end in interval]
    return {"value": function(value), "interval": ends}


def choose_convention(
    models: Sequence[TrainedModel], text: HeldOutText, *, per_document: bool, has_stride: bool
) -> Convention:
    """Return the convention of an evaluation.

    All documents are one stream, unless per_document is set or the tokenizers differ. Then each document is scored
    alone, after an id of the tokenizer. If a tokenizer has no such id, models are compared on a text of one document.
    They do not predict its start, up to the first end of a token that all tokenizers have in common.

    Raises UserError if each document must be scored alone, but a stride is given or a tokenizer has no id to put before
    a document.
    """
    tokenizers = [trained.tokenizer for trained in models]
    states = [identity_of(tokenizer.to_dict()) for tokenizer in tokenizers]
    have_same = all(state == states[0] for state in states)
    if have_same and not per_document:
        return Convention("stream")

    if has_stride:
        raise UserError("--stride requires models that have the same tokenizer")
    without = [trained for trained in models if bos_id_of(trained.tokenizer) is None]
    if not without:
        return Convention("documents")
    if not per_document and text.n_documents == 1:
        return Convention("single", n_skipped_bytes=_first_common_end(tokenizers, text))
    fix = "" if per_document else "; to compare models without it, give a text of one document"
    raise UserError(
        f"the tokenizer of {without[0].path} must have an end-of-text token to put before each document; "
        f"the tokenizer 'char' has an end-of-text token only if its text had several documents{fix}"
    )


def _first_common_end(tokenizers: Sequence[Tokenizer], text: HeldOutText) -> int:
    """Return the number of bytes up to the first end of a token that all tokenizers have in common.

    The text has one document. Raise UserError if no end before the end of the text is common.
    """
    common = None
    n_bytes = 0
    for tokenizer in tokenizers:
        (ids,), lengths = text.documents(tokenizer)
        ends = _byte_ends(tokenizer, ids)  # (n_ids,)
        n_bytes = round(lengths.sum())
        common = ends if common is None else np.intersect1d(common, ends)
    inner = [] if common is None else common[(common > 0) & (common < n_bytes)]
    if not len(inner):
        raise UserError(f"{text.name} is too short to compare these tokenizers; give more text")
    return int(inner[0])


def _byte_ends(tokenizer: Tokenizer, ids: np.ndarray) -> np.ndarray:
    """Return the number of UTF-8 bytes of a text up to the end of each id, (n,). The text starts with the first id."""
    return np.cumsum(tokenizer.byte_lengths()[ids]) - len(tokenizer.prefix_text)
