"""The options of the commands that generate text: sample, chat and serve."""

import argparse
from typing import Any

from gptmini.commands.arguments import at_least_one
from gptmini.data.escapes import unescaped
from gptmini.settings import SAMPLE_SEED, SAMPLE_TEMPERATURE

DTYPES = ("fp32", "bf16", "fp64")


def stop_string(text: str) -> str:
    """Return a value of --stop with its escapes replaced. argparse calls this function as a type."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return unescaped(text)


def add_sampling(
    parser: argparse.ArgumentParser, *, max_new_tokens: int, seed: int | None = SAMPLE_SEED
) -> None:
    """Add the sampling options. The arguments max_new_tokens and seed are the defaults of these options."""
    parser.add_argument(
        "--max-new-tokens",
        type=at_least_one,
        default=max_new_tokens,
        help="maximum number of generated tokens (default: %(default)s)",
    )

    # How the next token is drawn. gptmini.generation.Rules checks the ranges.
    parser.add_argument(
        "--temperature",
        type=float,
        default=SAMPLE_TEMPERATURE,
        help="divisor of the logits; 0 always takes the most probable token (default: %(default)s)",
    )
    parser.add_argument(
        "--top-k",
        type=int,
        help="draw only from this many most probable tokens; 0: from all (default: all)",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        help="draw only from the smallest set of tokens with this total probability (default: all)",
    )
    parser.add_argument(
        "--min-p",
        type=float,
        help="draw only from tokens at least this many times as probable as the most probable token (default: all)",
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        help="a value above 1 makes repetitions less probable (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=seed,
        help="random seed; the same seed gives the same samples "
        f"(default: {'a new seed for each request' if seed is None else seed})",
    )

    # The end of a sample.
    parser.add_argument(
        "--stop",
        type=stop_string,
        action="append",
        default=[],
        help=r"end a sample before this text, such as '\n\n'; may be repeated",
    )
    parser.add_argument(
        "--ignore-end-of-text",
        action="store_true",
        help="continue after the end of a document or answer",
    )


def rules_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options as the fields of gptmini.generation.Rules."""
    return {
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "repetition_penalty": options.repetition_penalty,
    }


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the options for the device and the dtype."""
    parser.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, cuda or mps (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", *DTYPES),
        help="dtype of the weights; auto: bf16 on GPUs with bf16, and for large models on CPUs with bf16, "
        "otherwise the dtype in the checkpoint",
    )
