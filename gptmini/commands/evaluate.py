"""Measure trained models on held-out text: gptmini evaluate RUN [options]."""

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING

from gptmini.commands.arguments import at_least_one, say_which
from gptmini.commands.evaluate_output import lines_of
from gptmini.commands.mistakes import Parser, one_line_errors, path_argument, print_mistake
from gptmini.configuration.messages import advising_on_memory
from gptmini.loading import open_model
from gptmini.process import TROUBLE, started
from gptmini.user_error import UserError

# A mistake in an option is told before torch is imported, which takes seconds.
if TYPE_CHECKING:
    from gptmini.evaluation.measured import TrainedModel
    from gptmini.evaluation.texts import HeldOutText

FIELD = "text"
SPLIT = "val"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        prog="gptmini evaluate",
        description="Loss, perplexity and bits per byte of a trained model on held-out text, each with an interval.",
    )

    # What is evaluated, and on which text.
    parser.add_argument(
        "runs",
        nargs="+",
        type=path_argument,
        metavar="run",
        help="run folder (its best checkpoint), checkpoint file or exported folder, as in runs/latest; "
        "runs/NAME for its newest run with a checkpoint",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="compare two runs on one text, document by document",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--text",
        type=path_argument,
        nargs="+",
        metavar="FILE",
        help="evaluate on these files or folders of text, which need not be prepared",
    )
    source.add_argument(
        "--data",
        type=path_argument,
        help="prepared folder (default: the one that the run was trained on)",
    )
    parser.add_argument(
        "--field",
        help=f"column of the text in the files of records that --text names (default: {FIELD})",
    )
    parser.add_argument(
        "--split",
        choices=("train", "val"),
        help=f"of the prepared folder (default: {SPLIT})",
    )
    parser.add_argument(
        "--max-tokens",
        type=at_least_one,
        help="evaluate on the first so many, or on whole documents that together have as many (default: all)",
    )

    # The convention that the figures follow.
    convention = parser.add_mutually_exclusive_group()
    convention.add_argument(
        "--per-document",
        action="store_true",
        help="score each document alone, as lm-evaluation-harness does",
    )
    convention.add_argument(
        "--stride",
        type=at_least_one,
        help="tokens between the beginnings of windows, which then overlap (default: the context, without overlap)",
    )

    # What computes, and what is printed.
    parser.add_argument(
        "--batch-size",
        type=at_least_one,
        default=32,
        help="windows at once (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, cuda or mps (default: %(default)s)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one object of JSON instead of lines",
    )

    options = parser.parse_args(arguments)
    n_wanted = 2 if options.compare else 1
    if len(options.runs) != n_wanted:
        verb = "takes two runs" if options.compare else "is needed to evaluate several runs"
        parser.error(f"--compare {verb}, got {len(options.runs)}")
    if options.text is not None and options.split is not None:
        parser.error("--split belongs to a prepared folder; leave out --text")
    if options.text is None and options.field is not None:
        parser.error("--field belongs to the files that --text names")
    return options


@one_line_errors()
@advising_on_memory("lower --batch-size, or use a machine with more memory")
def main(arguments: list[str] | None = None) -> None:
    """Load the models and the text, evaluate, and print loss, perplexity and bits per byte."""
    options = parse(arguments)

    from rich.console import Console

    from gptmini.evaluation.measured import measure, report_of, scores_documents_alone
    from gptmini.hardware import choose_device

    started()
    device = choose_device(options.device)
    models = [open_model(path) for path in options.runs]
    text = open_text(options, models[0])
    for note in text.notes:
        print(f"warning: {note}", file=sys.stderr)
    alone = scores_documents_alone(
        models, per_document=options.per_document, has_stride=options.stride is not None
    )

    measured = []
    for trained in models:
        trained.model.to(device)
        with Console(stderr=True).status("evaluating") as status:
            result = measure(
                trained,
                text,
                alone=alone,
                stride=options.stride,
                batch_size=options.batch_size,
                on_batch=lambda n, n_all: status.update(f"evaluating: {n:,} of {n_all:,} tokens"),
            )
        trained.model.to("cpu")
        measured.append(result)

        loss = result.evaluation.loss
        if not math.isfinite(loss):
            print_mistake(
                f"{trained.path} must give {text.name} a finite loss, got {loss}; its weights may be those of a run "
                "that diverged"
            )
            sys.exit(TROUBLE)

    report = report_of(text, measured)
    for typed, trained in zip(options.runs, models, strict=True):
        say_which(typed, trained.run)
    if options.json:
        # JSON knows no infinity, such as a perplexity can be.
        plain = json.loads(json.dumps(report), parse_constant=lambda name: None)
        print(json.dumps(plain, indent=2))
    else:
        print("\n".join(lines_of(report)))


def open_text(options: argparse.Namespace, trained: "TrainedModel") -> "HeldOutText":
    """The text that the options name, or else the tokens that the first model was trained on.

    Raises UserError: a text that cannot be read, or no text is named and the model's checkpoint names none.
    """
    from gptmini.evaluation.texts import PreparedText, TextFiles

    if options.text is not None:
        return TextFiles(options.text, options.field or FIELD, options.max_tokens)

    folder = options.data or trained.data
    if folder is None:
        raise UserError(
            f"{trained.path} does not say where its tokens are; name a prepared folder with --data, or files of text "
            "with --text"
        )
    return PreparedText(folder, options.split or SPLIT, options.max_tokens)
