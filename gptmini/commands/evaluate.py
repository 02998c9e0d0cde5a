"""Measure trained models on held-out text: gptmini evaluate RUN [options]."""

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING

from gptmini.commands.evaluate_output import topic_lines
from gptmini.commands.mistakes import one_line_errors, print_error
from gptmini.commands.options import Parser, at_least_one
from gptmini.commands.options import file_or_folder as path_argument
from gptmini.configuration.messages import advising_on_memory
from gptmini.job.printing import print_lines, print_note, print_resolved_run
from gptmini.loading import open_model
from gptmini.process import OUT_OF_RESOURCES, restore_gc_and_sigint
from gptmini.runs import named_run
from gptmini.user_error import UserError

# Importing torch takes seconds, so main imports it after the options are checked.
if TYPE_CHECKING:
    from gptmini.evaluation.measured import TrainedModel
    from gptmini.evaluation.texts import HeldOutText

FIELD = "text"
SPLIT = "val"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        prog="gptmini evaluate",
        description="Measure loss, perplexity and bits per byte of a trained model on held-out text, with confidence "
        "intervals.",
    )

    # The models and the text.
    parser.add_argument(
        "runs",
        nargs="+",
        type=path_argument,
        metavar="run",
        help="run folder such as runs/latest (its best checkpoint is used), checkpoint file or exported folder; "
        "runs/NAME means the latest run in this folder that has a checkpoint",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="compare two runs on the same text, document by document",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--text",
        type=path_argument,
        nargs="+",
        metavar="FILE",
        help="files or folders of text to evaluate on, without gptmini prepare",
    )
    source.add_argument(
        "--data",
        type=path_argument,
        help="prepared folder to evaluate on (default: the folder that the run was trained on)",
    )
    parser.add_argument(
        "--field",
        help=f"with --text: the field or column that contains the text of each record (default: '{FIELD}')",
    )
    parser.add_argument(
        "--split",
        choices=("train", "val"),
        help=f"split of the prepared folder (default: {SPLIT})",
    )
    parser.add_argument(
        "--max-tokens",
        type=at_least_one,
        help="evaluate on this many tokens from the start of the text; if documents are scored separately, the last "
        "document is not cut (default: all tokens)",
    )

    # How the losses are computed.
    parser.add_argument(
        "--per-document",
        action="store_true",
        help="score each document separately, as lm-evaluation-harness does",
    )

    # Computation and output.
    parser.add_argument(
        "--batch-size",
        type=at_least_one,
        default=32,
        help="windows per batch (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, cuda or mps (default: %(default)s)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a JSON object instead of lines",
    )

    options = parser.parse_args(arguments)
    n_wanted = 2 if options.compare else 1
    if len(options.runs) != n_wanted:
        n_given = len(options.runs)
        if options.compare:
            parser.error(f"--compare requires two runs, got {n_given}")
        parser.error(
            f"expected one run, got {n_given}; to compare two runs, add --compare; to evaluate on text files, add "
            "--text"
        )
    if options.text is not None and options.split is not None:
        parser.error(
            "--split applies only to a prepared folder; leave out either --split or --text"
        )
    if options.text is None and options.field is not None:
        parser.error("--field applies only to --text; add --text FILE, or leave out --field")
    return options


@one_line_errors()
@advising_on_memory("lower --batch-size, or use a machine with more memory")
def main(arguments: list[str] | None = None) -> None:
    """Evaluate the models on the text, and print loss, perplexity and bits per byte."""
    options = parse(arguments)
    for run in options.runs:
        named_run(run)  # look for the runs before the imports of torch, which take seconds

    from rich.console import Console

    from gptmini.evaluation.measured import measure, report_of, scores_per_document
    from gptmini.hardware import choose_device

    restore_gc_and_sigint()
    device = choose_device(options.device)
    models = [open_model(path) for path in options.runs]
    text = open_text(options, models[0])
    for note in text.notes:
        print_note(f"warning: {note}")
    per_document = scores_per_document(models, is_wanted=options.per_document)

    measured = []
    for trained in models:
        trained.model.to(device)
        with Console(stderr=True).status("evaluating") as status:
            result = measure(
                trained,
                text,
                per_document=per_document,
                batch_size=options.batch_size,
                on_batch=lambda n, n_all: status.update(f"evaluating: {n:,} of {n_all:,} tokens"),
            )
        trained.model.to("cpu")
        measured.append(result)

        loss = result.evaluation.loss
        if not math.isfinite(loss):
            print_error(
                f"the loss of {trained.path} on {text.name} must be finite, got {loss}; the training may have diverged"
            )
            sys.exit(OUT_OF_RESOURCES)

    report = report_of(text, measured)
    for given, trained in zip(options.runs, models, strict=True):
        print_resolved_run(given, trained.run)
    if options.json:
        # JSON has no infinity, but a perplexity can be infinite.
        plain = json.loads(json.dumps(report), parse_constant=lambda name: None)
        print(json.dumps(plain, indent=2))
    else:
        print_lines(*topic_lines(report))


def open_text(options: argparse.Namespace, trained: "TrainedModel") -> "HeldOutText":
    """Return the text that the options name, by default the prepared folder of the first model.

    Raises UserError if the text cannot be read, or if neither the options nor the checkpoint name a text.
    """
    from gptmini.evaluation.texts import PreparedText, TextFiles

    if options.text is not None:
        return TextFiles(options.text, options.field or FIELD, options.max_tokens)

    folder = options.data or trained.data
    if folder is None:
        raise UserError(
            f"{trained.path} does not name its training data; give a prepared folder with --data, or text files with "
            "--text"
        )
    return PreparedText(folder, options.split or SPLIT, options.max_tokens)
