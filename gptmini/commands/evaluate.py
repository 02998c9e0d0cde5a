"""Measure a trained model on held-out text: gptmini evaluate RUN [options]."""

import argparse
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.checks import UserError
from gptmini.commands.errors import Parser, one_line_errors, path_argument
from gptmini.commands.named import say_which
from gptmini.commands.start_up import started, starting_up

# A mistake in an option is told before torch is imported, which takes seconds.
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.status import Status
    from torch import Tensor

    from gptmini.data.store import TokenStore


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; argparse refuses an unknown option or a value of the wrong type."""
    parser = Parser(
        prog="gptmini evaluate",
        description="Loss, perplexity and bits per byte of a trained model.",
    )

    # What is evaluated, and on which text.
    parser.add_argument(
        "run",
        help="run folder (its best checkpoint) or checkpoint file, as in runs/latest; "
        "runs/NAME for its newest run",
    )
    parser.add_argument(
        "--data",
        type=path_argument,
        help="prepared folder (default: the one that the run was trained on)",
    )
    parser.add_argument(
        "--split",
        default="val",
        choices=("train", "val"),
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        help="evaluate on the first so many (default: all)",
    )

    # What computes.
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
    return parser.parse_args(arguments)


@one_line_errors()
@starting_up()
def main(arguments: list[str] | None = None) -> None:
    """Load a model and its tokens, evaluate the model, and print loss, perplexity and bits per byte."""
    options = parse(arguments)
    for name in ("max_tokens", "batch_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}")

    from rich.console import Console

    from gptmini.data.batches import validation_windows
    from gptmini.data.store import tokens_per_byte_of
    from gptmini.evaluation import evaluate
    from gptmini.hardware import choose_device
    from gptmini.model.checkpoint import build_model, read_checkpoint
    from gptmini.run_folder import find_checkpoint, named_run

    started()
    run = named_run(options.run)
    path = find_checkpoint(run)
    checkpoint = read_checkpoint(path)
    model = build_model(checkpoint)
    store = _open_tokens_of(checkpoint["gptmini"], path, folder=options.data)
    store.check_vocabulary(model.config.vocab_size)

    excerpts = store.excerpts(options.split, options.max_tokens)
    windows = chain.from_iterable(
        validation_windows(
            excerpt.ids,
            context_length=model.config.context_length,
            batch_size=options.batch_size,
            max_tokens=excerpt.n_tokens,
        )
        for excerpt in excerpts
    )
    model.to(choose_device(options.device))
    n_tokens = sum(excerpt.n_tokens for excerpt in excerpts)
    with Console(stderr=True).status("evaluating") as status:
        watched = _watched(windows, n_tokens, status)
        result = evaluate(model, watched, tokens_per_byte=tokens_per_byte_of(excerpts))

    say_which(options.run, run)
    print(f"{path} on {options.split} of {store.folder}, {result.n_tokens:,} tokens")
    print(f"loss           {result.loss:.4f} nats per token")
    print(f"perplexity     {result.perplexity:.3f}")
    print(f"bits per byte  {result.bits_per_byte:.4f}")


def _watched(
    windows: "Iterable[tuple[Tensor, Tensor]]", n_tokens: int, status: "Status"
) -> "Iterator[tuple[Tensor, Tensor]]":
    """Show on a terminal how many of n_tokens tokens are evaluated, as windows are taken."""
    n_done = 0
    for tokens, targets in windows:
        status.update(f"evaluating: {n_done:,} of {n_tokens:,} tokens")
        yield tokens, targets
        n_done += targets.numel()


def _open_tokens_of(header: dict, path: Path, *, folder: Path | None) -> "TokenStore":
    """Open the tokens to evaluate a checkpoint on: those in folder, or those that the model was trained on.

    Args:
        header: what the checkpoint says of its tokenizer and its data.
        path: the checkpoint's file, for the error message.
        folder: a folder that the prepare command wrote; None for the one that the checkpoint names.

    Raises UserError: the checkpoint names no folder, or the tokens are those of another tokenizer.
    """
    from gptmini.data import TokenStore, find_prepared

    if folder is None:
        trained_on = header.get("data")
        if isinstance(trained_on, dict):
            folder = trained_on.get("folder")
        if folder and isinstance(folder, str):
            folder = find_prepared(Path(folder), path)
    if not folder or not isinstance(folder, str | Path):
        raise UserError(
            f"{path} does not say where its tokens are; name a prepared folder with --data"
        )

    store = TokenStore(Path(folder))
    if store.tokenizer != header.get("tokenizer"):
        raise UserError(
            f"{store.folder} must hold tokens of the model's own tokenizer, got those of another"
        )
    return store
