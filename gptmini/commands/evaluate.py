"""Measure trained models on held-out text: gptmini evaluate RUN [options]."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.errors import Parser, one_line_errors, path_argument, path_of
from gptmini.commands.evaluation_output import Measured, as_json, as_lines
from gptmini.commands.named import say_which
from gptmini.commands.start_up import started, starting_up
from gptmini.user_error import UserError

# A mistake in an option is told before torch is imported, which takes seconds.
if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from gptmini.commands.evaluated_text import PreparedText, Streams, TextFiles, TrainedModel
    from gptmini.evaluation.conventions import Plan


FIELD = "text"
SPLIT = "val"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; argparse refuses an unknown option or a value of the wrong type."""
    parser = Parser(
        prog="gptmini evaluate",
        description="Loss, perplexity and bits per byte of a trained model on held-out text, each with an interval.",
    )

    # What is evaluated, and on which text.
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="run",
        help="run folder (its best checkpoint), checkpoint file or exported folder, as in runs/latest; "
        "runs/NAME for its newest run",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="compare two runs on one text, document by document",
    )
    parser.add_argument(
        "--text",
        type=path_argument,
        nargs="+",
        metavar="FILE",
        help="evaluate on these files or folders of text, which need not be prepared",
    )
    parser.add_argument(
        "--field",
        help=f"column of the text in the files of records that --text names (default: {FIELD})",
    )
    parser.add_argument(
        "--data",
        type=path_argument,
        help="prepared folder (default: the one that the run was trained on)",
    )
    parser.add_argument(
        "--split",
        choices=("train", "val"),
        help=f"of the prepared folder (default: {SPLIT})",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        help="evaluate on the first so many, or on whole documents that together have as many (default: all)",
    )

    # The convention that the figures follow.
    parser.add_argument(
        "--per-document",
        action="store_true",
        help="score each document alone, as lm-evaluation-harness does",
    )
    parser.add_argument(
        "--stride",
        type=int,
        help="tokens between the beginnings of windows, which then overlap (default: the context, without overlap)",
    )

    # What computes, and what is printed.
    parser.add_argument(
        "--batch-size",
        type=int,
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
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    """Raise UserError for options that do not go together, or a number that is out of range."""
    for name in ("max_tokens", "batch_size", "stride"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}")

    n_wanted = 2 if options.compare else 1
    if len(options.runs) != n_wanted:
        verb = "takes two runs" if options.compare else "is needed to evaluate several runs"
        raise UserError(f"--compare {verb}, got {len(options.runs)}")

    if options.per_document and options.stride is not None:
        raise UserError("--stride belongs to a stream of text; leave out --per-document")
    if options.text is not None and options.data is not None:
        raise UserError("--text and --data both name a text; leave out one")
    if options.text is not None and options.split is not None:
        raise UserError("--split belongs to a prepared folder; leave out --text")
    if options.text is None and options.field is not None:
        raise UserError("--field belongs to the files that --text names")


@one_line_errors()
@starting_up()
def main(arguments: list[str] | None = None) -> None:
    """Load a model and a text, evaluate the model, and print loss, perplexity and bits per byte."""
    options = parse(arguments)

    from gptmini.commands.evaluated_text import open_model, open_text
    from gptmini.evaluation.intervals import compare
    from gptmini.hardware import choose_device

    started()
    device = choose_device(options.device)
    named = [_named(run) for run in options.runs]
    models = [open_model(run) for run in named]
    text = open_text(
        models[0],
        files=options.text,
        field=options.field or FIELD,
        folder=options.data,
        split=options.split or SPLIT,
        max_tokens=options.max_tokens,
    )
    alone = _scores_documents_alone(models, options)

    measured = []
    for model in models:
        model.model.to(device)
        measured.append(_measure(model, text, options, alone=alone))
        model.model.to("cpu")

    for typed, run in zip(options.runs, named, strict=True):
        say_which(typed, run)
    comparison = None
    if options.compare:
        _check_same_text(measured)
        comparison = compare(measured[0].sums, measured[1].sums)

    if options.json:
        print(json.dumps(as_json(text.name, measured, comparison), indent=2))
    else:
        print("\n".join(as_lines(text.name, measured, comparison)))


def _named(run: str) -> Path:
    """The run, file or exported folder that a user means."""
    from gptmini.loading import is_exported
    from gptmini.run_folder import named_run

    path = path_of(run)
    return path if is_exported(path) else named_run(path)


def _scores_documents_alone(models: "Sequence[TrainedModel]", options: argparse.Namespace) -> bool:
    """Whether each document is scored alone: where that is asked for, or models of different tokenizers are compared.

    Raises UserError: a tokenizer has no end-of-text, behind which a document could stand.
    """
    tokenizers = [model.tokenizer.to_dict() for model in models]
    have_same = all(state == tokenizers[0] for state in tokenizers)
    if have_same and not options.per_document:
        return False

    if options.stride is not None:
        raise UserError("--stride needs models with the same tokenizer")
    for model in models:
        if model.tokenizer.end_of_text is None:
            raise UserError(
                f"the tokenizer of {model.path} must have an end-of-text, behind which each document is scored; "
                "tokenizer=char has one only if its text had several documents"
            )
    return True


def _measure(
    model: "TrainedModel",
    text: "PreparedText | TextFiles",
    options: argparse.Namespace,
    *,
    alone: bool,
) -> "Measured":
    """Evaluate a model on a text, in one stream or each document alone."""
    from rich.console import Console

    from gptmini.commands.evaluated_text import count_words
    from gptmini.evaluation.sums import sums_of_parts

    n_words = None
    tokens_per_byte = None
    if alone:
        documents = text.documents(model)
        n_words = count_words(model, documents)
        plan = _plan_of_documents(model, documents)
    else:
        streams = text.streams(model)
        tokens_per_byte = streams.tokens_per_byte
        plan = _plan_of_streams(model, streams, options.stride)

    with Console(stderr=True).status("evaluating") as status:

        def show(n_tokens: int) -> None:
            status.update(f"evaluating: {n_tokens:,} of {plan.n_tokens:,} tokens")

        sums = sums_of_parts(
            model.model, plan.windows, batch_size=options.batch_size, on_batch=show
        )
    if not sums.n_bytes.sum():
        raise UserError(_nothing_scored(text.name, options, alone=alone))
    return Measured(
        path=model.path,
        convention=plan.convention,
        unit=plan.unit,
        sums=sums,
        tokens_per_byte=tokens_per_byte,
        n_words=n_words,
    )


def _nothing_scored(name: str, options: argparse.Namespace, *, alone: bool) -> str:
    """The error of a text of which no token with text in it is scored."""
    if alone:
        return f"{name} must hold text to evaluate on, got none"
    message = f"{name} must have text behind its first token, which nothing predicts in a stream"
    if options.max_tokens is not None:
        message += f", among --max-tokens={options.max_tokens}"
    return message


def _plan_of_documents(model: "TrainedModel", documents: "list[np.ndarray]") -> "Plan":
    """What is scored where each document stands alone."""
    from gptmini.evaluation.conventions import each_document_alone

    end_of_text = model.tokenizer.end_of_text
    assert end_of_text is not None  # as _scores_documents_alone has checked
    return each_document_alone(
        documents,
        end_of_text=end_of_text,
        context_length=model.model.config.context_length,
        byte_lengths=model.tokenizer.byte_lengths(),
    )


def _plan_of_streams(model: "TrainedModel", streams: "Streams", stride: int | None) -> "Plan":
    """What is scored of the streams of a text; UserError for a stride that is longer than a window."""
    from gptmini.evaluation.conventions import joined, one_stream

    context_length = model.model.config.context_length
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
            byte_lengths=model.tokenizer.byte_lengths(),
        )
        plans.append(plan)
    return joined(plans)


def _check_same_text(measured: "Sequence[Measured]") -> None:
    """Raise UserError unless two models were evaluated on as many bytes of text."""
    first, second = (int(model.sums.n_bytes.sum()) for model in measured)
    if first != second:
        raise UserError(
            f"{measured[0].path} and {measured[1].path} must be compared on the same text, got {first:,} and "
            f"{second:,} bytes of it"
        )
