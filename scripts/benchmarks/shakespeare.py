"""Tokens and time to nanoGPT's loss on Shakespeare's characters, in turns with nanoGPT itself.

Training time is the time of the whole command less the time of the same command with one step, so that it holds neither
start-up nor evaluation. Losses are those of the last step, over the whole held-out split.
"""

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

from .harness import GPTMINI, Table, final_losses, in_turns, ratios, subject_of, timed
from .nanogpt import LAPTOP, check_checkout, command, copy_with_tokens, write_vocabulary

PARTS = ("cpu", "peer", "large")
UNWATCHED = ("callbacks.samples=null", "callbacks.pictures=null")  # a peer writes neither
SMALL = "experiment=shakespeare_char_cpu"


class Run(NamedTuple):
    """A run of gptmini train."""

    seconds: float  # of the whole command
    loss: float


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("overrides", nargs="*", help="overrides of every run, as in data.path=input.txt")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds (default: 1 2 3)")
    add("--nanogpt", type=Path, help="a checkout of nanoGPT, for the part peer")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the parts that were asked for."""
    check_checkout(arguments.nanogpt)
    subject_of([SMALL, *arguments.overrides])  # tells a mistake, and prepares the tokens
    for part, function in (("cpu", losses), ("peer", peer), ("large", large)):
        if part in arguments.only:
            table.part = part
            function(table, arguments)


def losses(table: Table, arguments: argparse.Namespace) -> None:
    """The loss after few tokens and after nanoGPT's number of tokens, and that of nanoGPT's recipe."""
    own = partial(trained, SMALL, *arguments.overrides)
    seeds = f"mean of seeds {', '.join(map(str, arguments.seeds))}"
    n_tokens = tokens_of(SMALL, *arguments.overrides)
    few = [own(f"seed={seed}").loss for seed in arguments.seeds]
    what = "tokens of `shakespeare_char_cpu` to a validation loss of 1.88"
    table.add(what, n_tokens, goal="at most 128,000", method=seeds)
    what = "validation loss after these tokens"
    table.add(what, statistics.mean(few), spread=few, goal="at most 1.88", method=seeds)

    recipe = ["experiment=nanogpt_cpu", *arguments.overrides]
    n_recipe = tokens_of(*recipe)
    table.add("tokens of nanoGPT's recipe (`nanogpt_cpu`)", n_recipe)
    what = "validation loss of nanoGPT's recipe"
    table.add(what, trained(*recipe).loss, goal="1.87 to 1.92", method="seed 1")

    few_steps = subject_of([SMALL, *arguments.overrides]).settings.trainer.max_steps
    steps = f"trainer.max_steps={few_steps * n_recipe // n_tokens}"
    many = [own(f"seed={seed}", steps).loss for seed in arguments.seeds]
    what = f"validation loss after nanoGPT's {n_recipe:,} tokens"
    table.add_median(what, many, goal="at most 1.57", method=f"seeds {seeds[14:]}")


def peer(table: Table, arguments: argparse.Namespace) -> None:
    """The time of nanoGPT's whole run on a laptop, divided by that of gptmini's run to the same loss."""
    if arguments.nanogpt is None:
        print("peer: --nanogpt FOLDER names a checkout of nanoGPT to measure beside")
        return

    store = subject_of([SMALL, *arguments.overrides]).store
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_with_tokens(arguments.nanogpt, folder, store.tokens("train"), store.tokens("val"))
        write_vocabulary(folder, store.tokenizer.n_vocab)

        def theirs(**options: object) -> float:
            return timed(*command(LAPTOP | options), cwd=folder).seconds

        seconds = in_turns(
            arguments.turns,
            {
                "gptmini": lambda: trained(SMALL, *arguments.overrides).seconds,
                "gptmini, one step": lambda: (
                    trained(SMALL, *arguments.overrides, "trainer.max_steps=1").seconds
                ),
                "nanoGPT": theirs,
                "nanoGPT, one step": lambda: theirs(max_iters=1),
            },
        )

    def training(name: str) -> list[float]:
        return [
            whole - brief
            for whole, brief in zip(seconds[name], seconds[f"{name}, one step"], strict=True)
        ]

    table.add_median(
        "training time of nanoGPT's whole run, divided by gptmini's",
        ratios(training("nanoGPT"), training("gptmini")),
        goal="at least 8",
    )
    table.add_median(
        "time of nanoGPT's whole command, divided by gptmini's",
        ratios(seconds["nanoGPT"], seconds["gptmini"]),
        goal="at least 4",
    )


def large(table: Table, arguments: argparse.Namespace) -> None:
    """The baby GPT of 10.7 M parameters: tokens, loss and time."""
    recipe = ["experiment=shakespeare_char", *arguments.overrides]
    run = trained(*recipe)
    what = "tokens of `shakespeare_char` (10.7 M parameters) to a validation loss of 1.4697"
    table.add(what, tokens_of(*recipe), goal="at most 8,200,000", method="seed 1")
    table.add("validation loss after these tokens", run.loss, goal="at most 1.44", method="seed 1")
    table.add("minutes that `shakespeare_char` takes", run.seconds / 60, method="seed 1")


def tokens_of(*overrides: str) -> int:
    """Tokens that a run trains on."""
    subject = subject_of(overrides)
    settings = subject.settings.trainer
    context_length = subject.config.model.context_length
    return settings.max_steps * settings.global_batch_size * context_length


def trained(*overrides: str) -> Run:
    """A run that validates once, at its end."""
    last = f"trainer.val_every_steps={10**6}"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        own = [last, *UNWATCHED, f"folder={run}"]
        ended = timed(*GPTMINI, "train", *overrides, *own, cwd=Path.cwd())
        loss, _ = final_losses(run)
    return Run(ended.seconds, loss)
