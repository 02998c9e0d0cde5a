"""Format the results of gptmini evaluate as lines of text."""

from collections.abc import Iterator
from typing import Any

from gptmini import evaluation


def topic_lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield the results of an evaluation. Each line has one result."""
    intervals = report["intervals"]
    for model in report["models"]:
        yield f"{model['model']} on {report['text']}, {model['tokens']:,} tokens"
        yield line("loss", model["loss"], ".4f", "nats per token")
        yield line("perplexity", model["perplexity"], ".3f")
        yield line("bits per byte", model["bits_per_byte"], ".4f")
        yield f"{'convention':15} {model['convention']}"

    comparison = report.get("comparison")
    if comparison is not None:
        share_won = comparison["share_won_by_first"]
        difference = {"value": comparison["bits_per_byte"], "interval": comparison["interval"]}
        yield line("second - first", difference, "+.4f", "bits per byte")
        if difference["value"]:
            yield f"{'lower':15} the {'first' if difference['value'] > 0 else 'second'} model"
        if share_won is not None:
            yield f"{'first is lower':15} in {share_won:.0%} of the {intervals['part']}"
        elif intervals["parts"] > 1:
            yield f"{'no interval':15} the tokenizers split the text into different parts"

    n_equal = f"{intervals['equal_parts']:,.1f} equal parts"
    if report["models"][0]["bits_per_byte"]["interval"] is None:
        needed = f"an interval needs {evaluation.FEWEST_EQUAL_PARTS}"
        yield f"{'no interval':15} the text is as informative as {n_equal}, and {needed}; give more text"
    else:
        parts = f"{intervals['parts']:,} {intervals['part']}"
        yield f"{'intervals':15} {intervals['share']:.0%} from {parts}, as informative as {n_equal}"


def line(name: str, figure: dict[str, Any], digits: str, unit: str = "") -> str:
    """Return a line with a value and its confidence interval. The argument digits is a format such as .4f."""
    value = f"{figure['value']:{digits}} {unit}".rstrip()
    if figure["interval"] is None:
        return f"{name:15} {value}"
    low, high = figure["interval"]
    return f"{name:15} {value}  [{low:{digits}}, {high:{digits}}]"
