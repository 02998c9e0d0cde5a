"""What gptmini evaluate prints: lines for people, or one object of JSON."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # importing torch takes seconds
    from gptmini.evaluation.intervals import Comparison, Interval
    from gptmini.evaluation.sums import Sums


class Measured(NamedTuple):
    """The evaluation of one model."""

    path: Path  # of its checkpoint, or exported folder
    convention: str  # in words
    unit: str  # what a part of the text is, in the plural
    sums: "Sums"
    # Tokens for each byte of the whole text, by which the loss of a stream becomes bits per byte; None where documents
    # are scored alone, whose bytes are exactly those of the scored tokens.
    tokens_per_byte: float | None
    n_words: int | None  # of documents that are scored alone


class Figure(NamedTuple):
    """A number, and the range in which it lies for the whole source of the text."""

    value: float
    interval: "Interval | None"  # None for a text of one part


def as_json(
    text: str, measured: Sequence[Measured], comparison: "Comparison | None"
) -> dict[str, Any]:
    """All figures of an evaluation in plain values."""
    from gptmini.evaluation.intervals import N_DRAWS, SHARE

    first = measured[0]
    report: dict[str, Any] = {
        "text": text,
        "intervals": {
            "share": SHARE,
            "draws": N_DRAWS,
            "parts": len(first.sums.nats),
            "part": first.unit,
        },
        "models": [],
    }
    for model in measured:
        figures: dict[str, Any] = {
            "model": str(model.path),
            "convention": model.convention,
            "tokens": int(model.sums.n_tokens.sum()),
            "bytes": int(model.sums.n_bytes.sum()),
        }
        for name, figure in _figures(model).items():
            figures[name] = {
                "value": _finite(figure.value),
                "interval": _listed(figure.interval),
            }
        report["models"].append(figures)

    if comparison is not None:
        difference = _scaled(_difference(comparison), _scale_of_bits(first))
        report["comparison"] = {
            "bits_per_byte": _finite(difference.value),
            "interval": _listed(difference.interval),
            "share_won_by_first": comparison.share_won,
        }
    return report


def as_lines(
    text: str, measured: Sequence[Measured], comparison: "Comparison | None"
) -> Iterator[str]:
    """The figures of an evaluation, a line each."""
    from gptmini.evaluation.intervals import N_DRAWS, SHARE

    for model in measured:
        yield f"{model.path} on {text}, {model.sums.n_tokens.sum():,} tokens"
        figures = _figures(model)
        yield _line("loss", figures["loss"], ".4f", "nats per token")
        yield _line("perplexity", figures["perplexity"], ".3f")
        yield _line("bits per byte", figures["bits_per_byte"], ".4f")
        if "word_perplexity" in figures:
            yield _line("word perplexity", figures["word_perplexity"], ".3f")
        yield f"{'convention':15} {model.convention}"

    if comparison is not None:
        difference = _scaled(_difference(comparison), _scale_of_bits(measured[0]))
        yield _line("second - first", difference, "+.4f", "bits per byte")
        if comparison.share_won is None:
            yield f"{'no interval':15} two tokenizers cut one document into different blocks; give several documents"
        else:
            yield f"{'first is lower':15} in {comparison.share_won:.0%} of the {measured[0].unit}"

    first = measured[0]
    n_parts = len(first.sums.nats)
    if n_parts > 1:
        yield f"{'intervals':15} {SHARE:.0%} of {N_DRAWS:,} draws from {n_parts:,} {first.unit}"


def _line(name: str, figure: Figure, digits: str, unit: str = "") -> str:
    """A figure with its interval; digits is a format, as .4f."""
    value = f"{figure.value:{digits}} {unit}".rstrip()
    if figure.interval is None:
        return f"{name:15} {value}"
    low, high = figure.interval
    return f"{name:15} {value}  [{low:{digits}}, {high:{digits}}]"


def _listed(interval: "Interval | None") -> list[float | None] | None:
    """An interval as JSON has it."""
    return None if interval is None else [_finite(end) for end in interval]


def _finite(value: float) -> float | None:
    """A number as JSON has it, which knows no infinity."""
    return value if math.isfinite(value) else None


def _figures(model: Measured) -> dict[str, Figure]:
    """The figures of a model by their names."""
    from gptmini.evaluation.intervals import interval_of_bits, interval_of_loss
    from gptmini.evaluation.packed import exponential

    sums = model.sums
    loss = Figure(sums.loss, interval_of_loss(sums))
    bits = Figure(sums.bits_per_byte, interval_of_bits(sums))
    figures = {
        "loss": loss,
        "perplexity": _mapped(loss, exponential),
        "bits_per_byte": _scaled(bits, _scale_of_bits(model)),
    }
    if model.n_words is not None:
        nats_per_bit = math.log(2) * float(sums.n_bytes.sum()) / model.n_words
        figures["word_perplexity"] = _mapped(_scaled(bits, nats_per_bit), exponential)
    return figures


def _scaled(figure: Figure, factor: float) -> Figure:
    """A figure and its interval, times a factor."""
    return _mapped(figure, lambda value: factor * value)


def _scale_of_bits(model: Measured) -> float:
    """What the bits per byte of the scored tokens are multiplied by; 1 where documents are scored alone.

    A stream's bits per byte are the loss times the tokens per byte of the whole text, as a run validates: the first
    token counts, though nothing predicts it.
    """
    if model.tokens_per_byte is None:
        return 1.0
    # Of the tokens that are scored.
    bytes_per_token = model.sums.n_bytes.sum() / model.sums.n_tokens.sum()
    return float(bytes_per_token) * model.tokens_per_byte


def _difference(comparison: "Comparison") -> Figure:
    """The difference of two models, of the scored tokens."""
    return Figure(comparison.difference, comparison.interval)


def _mapped(figure: Figure, function: Callable[[float], float]) -> Figure:
    """A rising function of a figure and of the ends of its interval."""
    if figure.interval is None:
        return Figure(function(figure.value), None)
    low, high = figure.interval
    return Figure(function(figure.value), type(figure.interval)(function(low), function(high)))
