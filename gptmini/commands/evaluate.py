"""Measure trained models on held-out text: gptmini evaluate RUN [options]."""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from gptmini import evaluation
from gptmini.commands.mistakes import one_line_errors, print_error
from gptmini.commands.options import parse_options
from gptmini.configuration.messages import advising_on_memory
from gptmini.console.printing import print_lines, print_note, print_resolved_run
from gptmini.data import find_prepared
from gptmini.loading import ModelSource, place, source_of
from gptmini.runs import named_run
from gptmini.system.errors import UserError
from gptmini.system.process import OUT_OF_RESOURCES, restore_gc_and_sigint

FIELD = "text"
SPLIT = "val"


OPTIONS = f"""
runs RUN+  run folder such as runs/latest, checkpoint file, or exported folder; runs/NAME means its latest run
--compare  compare two runs on the same text, document by document
| --text PATH+  files, folders or addresses of text to evaluate on, without gptmini prepare
| --data FOLDER  prepared folder to evaluate on (default: the folder that the run was trained on)
--field NAME  with --text: the field or column that contains the text of each record (default: '{FIELD}')
--split train|val  split of the prepared folder (default: {SPLIT})
--max-tokens COUNT  evaluate on this many tokens from the start of the text, or until a document ends (default: all)
--per-document  score each document separately, as lm-evaluation-harness does
--batch-size COUNT=32  windows per batch
--device NAME=auto  auto, cpu, cuda or mps
--dtype fp32|bf16|int8  dtype of the weights (default: the checkpoint's dtype, fp32 for a run)
--json  print a JSON object instead of lines
"""
DESCRIPTION = (
    "Measure loss, perplexity and bits per byte of trained models on held-out text, with intervals."
)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    options = parse_options("evaluate", DESCRIPTION, OPTIONS, arguments)
    n_given = len(options.runs)
    if options.compare and n_given != 2:
        raise UserError(f"--compare requires two runs, got {n_given}")
    if not options.compare and n_given != 1:
        raise UserError(
            f"expected one run, got {n_given}; to compare two runs, add --compare; to evaluate on text files, add "
            "--text"
        )
    if options.text is not None and options.split is not None:
        raise UserError(
            "give either --split or --text, not both; only a prepared folder has splits"
        )
    if options.text is None and options.field is not None:
        raise UserError("--field applies only to --text; add --text PATH, or leave out --field")
    return options


@one_line_errors()
@advising_on_memory("lower --batch-size, or use a machine with more memory")
def main(arguments: list[str]) -> None:
    """Evaluate the models on the text, and print loss, perplexity and bits per byte."""
    options = parse(arguments)
    # Look for the runs before the import of torch, which takes seconds.
    runs = [named_run(path, saved=True) for path in options.runs]

    from gptmini.system.hardware import choose_device, choose_dtype

    restore_gc_and_sigint()
    device = choose_device(options.device)
    dtype = None
    if options.dtype is not None:
        dtype = choose_dtype(options.dtype, device)
    sources = [source_of(run) for run in runs]
    models = [
        evaluation.TrainedModel(source.path, source.model(), source.tokenizer) for source in sources
    ]
    text = open_text(options, sources[0])
    for note in text.notes:
        print_note(f"warning: {note}")
    per_document = evaluation.scores_per_document(models, is_wanted=options.per_document)

    measurements = []
    for trained in models:
        place(trained.model, device, dtype)
        with Console(stderr=True).status("evaluating") as status:
            result = evaluation.measure(
                trained,
                text,
                per_document=per_document,
                batch_size=options.batch_size,
                on_batch=lambda n, n_all: status.update(f"evaluating: {n:,} of {n_all:,} tokens"),
            )
        trained.model.to("cpu")
        measurements.append(result)

        loss = result.evaluation.loss
        if not math.isfinite(loss):
            print_error(
                f"the loss of {trained.path} on {text.name} must be finite, got {loss}; the training may have diverged"
            )
            sys.exit(OUT_OF_RESOURCES)

    report = evaluation.report_of(text, measurements)
    for given, run in zip(options.runs, runs, strict=True):
        print_resolved_run(given, run)
    if options.json:
        # JSON has no infinity, but a perplexity can be infinite.
        plain = json.loads(json.dumps(report), parse_constant=lambda name: None)
        print(json.dumps(plain, indent=2))
    else:
        print_lines(*lines_of(report))


def open_text(options: argparse.Namespace, source: ModelSource) -> "evaluation.HeldOutText":
    """Return the text that the options name, by default the prepared folder of the first model.

    Raises UserError if the text cannot be read, or if neither the options nor the checkpoint name a text.
    """
    if options.text is not None:
        return evaluation.TextFiles(options.text, options.field or FIELD, options.max_tokens)

    folder = options.data
    if folder is None and source.data_folder is not None:
        folder = find_prepared(source.data_folder, source.path)
    if folder is None:
        raise UserError(
            f"{source.path} does not name its training data; give a prepared folder with --data, or text files with "
            "--text"
        )
    return evaluation.PreparedText(folder, options.split or SPLIT, options.max_tokens)


def lines_of(report: dict[str, Any]) -> Iterator[str]:
    """Yield the results of an evaluation. Each line has one result."""
    intervals = report["intervals"]
    for model in report["models"]:
        yield f"{model['model']} on {report['text']}, {model['tokens']:,} tokens"
        yield line_of("loss", model["loss"], ".4f", "nats per token")
        yield line_of("perplexity", model["perplexity"], ".3f")
        yield line_of("bits per byte", model["bits_per_byte"], ".4f")
        yield f"{'convention':15} {model['convention']}"

    comparison = report.get("comparison")
    if comparison is not None:
        share_won = comparison["share_won_by_first"]
        difference = {"value": comparison["bits_per_byte"], "interval": comparison["interval"]}
        yield line_of("second - first", difference, "+.4f", "bits per byte")
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


def line_of(name: str, figure: dict[str, Any], digits: str, unit: str = "") -> str:
    """Return a line with a value and its confidence interval. The argument digits is a format such as .4f."""
    value = f"{figure['value']:{digits}} {unit}".rstrip()
    if figure["interval"] is None:
        return f"{name:15} {value}"
    low, high = figure["interval"]
    return f"{name:15} {value}  [{low:{digits}}, {high:{digits}}]"
