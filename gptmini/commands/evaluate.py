"""Measure a trained model on held-out text: gptmini evaluate RUN [options]."""

import argparse
from pathlib import Path

from gptmini.checks import UserError
from gptmini.commands.errors import Parser, one_line_errors


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; argparse refuses what does not fit."""
    parser = Parser(prog="gptmini evaluate", description="Loss, perplexity and bits per byte of a trained model.")
    parser.add_argument("run", help="run folder (its best checkpoint) or checkpoint file, as in runs/latest")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one that the run was trained on)")
    parser.add_argument("--split", default="val", choices=("train", "val"), help="(default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, help="evaluate on the first so many (default: all)")
    parser.add_argument("--batch-size", type=int, default=32, help="windows at once (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: %(default)s)")
    return parser.parse_args(arguments)


@one_line_errors()
def main(arguments: list[str] | None = None) -> None:
    """Load the model and its tokens, evaluate, print."""
    arguments = parse(arguments)
    for name in ("max_tokens", "batch_size"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}")

    from gptmini.data.batches import validation_windows
    from gptmini.data.store import TokenStore
    from gptmini.evaluation import evaluate
    from gptmini.hardware import choose_device
    from gptmini.model.checkpoint import build_model, find_checkpoint, read_checkpoint

    path = find_checkpoint(arguments.run)
    checkpoint = read_checkpoint(path)
    model, said = build_model(checkpoint), checkpoint["gptmini"]
    trained_on = said.get("data")
    folder = arguments.data or (trained_on.get("folder") if isinstance(trained_on, dict) else None)
    if not folder:
        raise UserError(f"{path} does not say where its tokens are; name a prepared folder with --data")
    store = TokenStore(Path(folder))
    if store.tokenizer != said.get("tokenizer"):
        raise UserError(f"{store.folder} must hold tokens of the model's own tokenizer, got those of another")
    windows = validation_windows(
        store.tokens(arguments.split),
        context_length=model.config.context_length,
        batch_size=arguments.batch_size,
        max_tokens=arguments.max_tokens,
    )
    model.to(choose_device(arguments.device))
    result = evaluate(model, windows, tokens_per_byte=store.tokens_per_byte(arguments.split))
    print(f"{path} on {arguments.split} of {store.folder}, {result.n_tokens:,} tokens")
    print(f"loss           {result.loss:.4f} nats per token")
    print(f"perplexity     {result.perplexity:.3f}")
    print(f"bits per byte  {result.bits_per_byte:.4f}")
