"""Evaluate models on a text and report loss, perplexity and bits per byte with intervals, as plain values."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gptmini.data import tokens_per_byte_of
from gptmini.evaluation.held_out import HeldOutText
from gptmini.evaluation.intervals import (
    SHARE,
    Interval,
    compare,
    interval_of_bits,
    interval_of_ratio,
    n_equal_parts,
)
from gptmini.evaluation.score import Evaluation, Sums, exponential, score
from gptmini.evaluation.windows import BLOCK_BYTES, passage_of_documents, passage_of_excerpt
from gptmini.model import GPT
from gptmini.system.errors import UserError
from gptmini.tokenizer import Tokenizer, bos_id_of, identity_of


class TrainedModel(NamedTuple):
    """A model to evaluate."""

    path: Path  # checkpoint file or Hugging Face folder
    model: GPT
    tokenizer: Tokenizer


class Measurement(NamedTuple):
    """The evaluation of one model."""

    path: Path  # checkpoint file or Hugging Face folder
    convention: str  # description of the scoring convention
    unit: str  # name of the parts of the text, in the plural
    evaluation: Evaluation  # loss, number of tokens and bits per byte of the entire text
    tokens_per_byte: float  # number of tokens per byte, used to compute bits per byte
    # UTF-8 bytes of the documents. If the documents are in a row, of the scored tokens.
    n_bytes: int
    sums: Sums  # sums over each part of the text


def measure(
    trained: TrainedModel,
    text: HeldOutText,
    *,
    per_document: bool,
    batch_size: int,
    on_batch: Callable[[int, int], None],
) -> Measurement:
    """Evaluate a model on its device, with the documents in a row, or each document alone after the tokenizer's bos id.

    on_batch is called after each batch with the number of scored tokens and the total number of tokens.
    Raises UserError if the tokenizer does not fit the text, or if no scored token has text.
    """
    tokenizer = trained.tokenizer
    config = trained.model.config
    lengths = None  # bytes of each document, if each document is scored alone
    tokens_per_byte = None  # None: compute it from the scored text
    if per_document:
        documents, lengths = text.documents(tokenizer)
        first = bos_id_of(tokenizer)
        assert first is not None
        passage = passage_of_documents(
            documents,
            first=first,
            first_text=tokenizer.decode([first]),
            context_length=config.longest_input,  # as in lm-evaluation-harness
            batch_size=batch_size,
        )
        passages = [passage]
    else:
        excerpts = text.excerpts(tokenizer)
        tokens_per_byte = tokens_per_byte_of(excerpts)  # of the entire text, as in validation
        passages = [
            passage_of_excerpt(excerpt, context_length=config.context_length, batch_size=batch_size)
            for excerpt in excerpts
        ]

    n_tokens = sum(passage.n_tokens for passage in passages)
    tally, sums = score(
        trained.model,
        passages,
        byte_lengths=tokenizer.byte_lengths(),
        on_batch=lambda n_done: on_batch(n_done, n_tokens),
    )

    n_bytes = int(sums.n_bytes.sum())
    if lengths is not None:
        # Count the bytes of the text itself, because some tokenizers add a space or replace characters.
        n_bytes = round(lengths.sum())
        ends = passages[0].ends
        if ends is not None:
            has_tokens = np.diff(ends, prepend=0) > 0  # (n_documents,)
            sums = sums._replace(n_bytes=lengths[has_tokens])
    if not n_bytes:
        raise UserError(
            f"{text.name} has no text after its first token, which is not scored; raise --max-tokens, or give a "
            "different text"
        )

    if tokens_per_byte is None:
        tokens_per_byte = n_tokens / n_bytes
    units = dict.fromkeys(
        f"blocks of {BLOCK_BYTES} bytes" if passage.ends is None else "documents"
        for passage in passages
    )
    return Measurement(
        path=trained.path,
        convention=passages[0].convention,
        unit=" and ".join(units),
        evaluation=tally.evaluation(tokens_per_byte),
        tokens_per_byte=tokens_per_byte,
        n_bytes=n_bytes,
        sums=sums,
    )


def report_of(text: HeldOutText, measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Return all results of one model, or of two models with their comparison, as plain values."""
    first = measurements[0]
    report: dict[str, Any] = {
        "text": text.name,
        "intervals": {
            "share": SHARE,
            "parts": len(first.sums.nats),
            "part": first.unit,
            "equal_parts": n_equal_parts(first.sums.n_bytes),
        },
        "models": [_figures(model) for model in measurements],
    }
    if len(measurements) == 2:
        report["comparison"] = _comparison(first, measurements[1])
    return report


def _figures(model: Measurement) -> dict[str, Any]:
    loss = model.evaluation.loss
    bits = model.evaluation.bits_per_byte
    of_loss = interval_of_ratio(model.sums.nats, model.sums.n_tokens)
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


def _comparison(first: Measurement, second: Measurement) -> dict[str, Any]:
    interval, share_won = compare(first.sums, second.sums)
    difference = second.evaluation.bits_per_byte - first.evaluation.bits_per_byte
    return {
        "bits_per_byte": difference,
        "interval": _scaled(interval, first),
        "share_won_by_first": share_won,
    }


def _scaled(interval: Interval | None, model: Measurement) -> Interval | None:
    # The interval is in bits per byte of the parts. Convert it to bits per byte of the text.
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


def scores_per_document(models: Sequence[TrainedModel], *, is_wanted: bool) -> bool:
    """Return whether to score each document alone: if the user wants it, or if the tokenizers differ.

    Raises UserError if each document must be scored alone, but a tokenizer has no id to put before a document.
    """
    states = [identity_of(trained.tokenizer.to_dict()) for trained in models]
    if not is_wanted and all(state == states[0] for state in states):
        return False

    for trained in models:
        if bos_id_of(trained.tokenizer) is None:
            raise UserError(
                f"the tokenizer of {trained.path} has no end-of-text token to put before each document; "
                "evaluate each run alone, without --per-document"
            )
    return True
