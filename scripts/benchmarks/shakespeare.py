"""Measure the tokens and the time to reach nanoGPT's loss on Shakespeare's characters, in turns with nanoGPT.

Training time is the time of the command minus the time of the same command with one step. So it does not include
start-up and evaluation. Losses are validation losses of the last step on the entire held-out split.
"""

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

from . import nanogpt
from .fits import subject_of
from .harness import (
    UNWATCHED,
    Table,
    add_overrides,
    differences,
    given,
    in_turns,
    ratios,
    timed,
    train,
)

SMALL = "experiment=shakespeare_char_cpu"
# Every run validates only once, at its end.
OWN = (*UNWATCHED, "trainer.val_every_steps=1000000")


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_overrides(parser)
    note = "seeds (default: 1 2 3)"
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help=note)
    nanogpt.add_nanogpt(parser)


def prepare(arguments: argparse.Namespace) -> None:
    """Prepare the tokens, and report a mistake in the overrides early."""
    arguments.overrides += OWN
    subject_of([SMALL, *arguments.overrides])


def losses(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the loss after few tokens, after nanoGPT's number of tokens, and of nanoGPT's recipe."""
    own = partial(train, SMALL, *arguments.overrides)
    names = ", ".join(map(str, arguments.seeds))
    n_tokens = tokens_of(SMALL, *arguments.overrides)
    few = [own(f"seed={seed}").loss for seed in arguments.seeds]
    method = f"mean of seeds {names}"
    what = "tokens of `shakespeare_char_cpu` to a validation loss of 1.88"
    table.add(what, n_tokens, goal="at most 64,000", method=method)
    what = "validation loss after these tokens"
    table.add(what, statistics.mean(few), spread=few, goal="at most 1.88", method=method)

    recipe = ["experiment=nanogpt_cpu", *arguments.overrides]
    n_recipe = tokens_of(*recipe)
    table.add("tokens of nanoGPT's recipe (`nanogpt_cpu`)", n_recipe)
    what = "validation loss of nanoGPT's recipe"
    table.add(what, train(*recipe).loss, goal="1.87 to 1.92", method="seed 1")

    few_steps = subject_of([SMALL, *arguments.overrides]).settings.trainer.max_steps
    steps = f"trainer.max_steps={few_steps * n_recipe // n_tokens}"
    many = [own(f"seed={seed}", steps).loss for seed in arguments.seeds]
    what = f"validation loss after nanoGPT's {n_recipe:,} tokens"
    table.add_median(what, many, goal="at most 1.5", method=f"seeds {names}")


def peer(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the time of nanoGPT's laptop run, divided by the time of gptmini's run to the same loss."""
    source = given(arguments, "nanogpt")
    store = subject_of([SMALL, *arguments.overrides]).store
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nanogpt.copy(
            source,
            folder,
            train=store.tokens("train"),
            val=store.tokens("val"),
            n_vocab=store.tokenizer.n_vocab,
        )

        def ours(*overrides: str) -> float:
            return train(SMALL, *arguments.overrides, *overrides).seconds

        def theirs(**changes: object) -> float:
            return timed(*nanogpt.command(nanogpt.LAPTOP | changes), cwd=folder).seconds

        seconds = in_turns(
            arguments.turns,
            {
                "gptmini": ours,
                "gptmini, one step": partial(ours, "trainer.max_steps=1"),
                "nanoGPT": theirs,
                "nanoGPT, one step": partial(theirs, max_iters=1),
            },
        )

    training = {
        name: differences(seconds[name], seconds[f"{name}, one step"])
        for name in ("gptmini", "nanoGPT")
    }
    table.add_median(
        "training time of nanoGPT's whole run, divided by gptmini's",
        ratios(training["nanoGPT"], training["gptmini"]),
        goal="at least 8",
    )
    table.add_median(
        "time of nanoGPT's whole command, divided by gptmini's",
        ratios(seconds["nanoGPT"], seconds["gptmini"]),
        goal="at least 10",
    )


def large(table: Table, arguments: argparse.Namespace) -> None:
    """Measure tokens, loss and time of both recipes for the baby GPT with 10.7 M parameters."""
    for name, goal in (
        ("shakespeare_char_short", "at most 1.44"),
        ("shakespeare_char", "at most 1.4"),
    ):
        recipe = [f"experiment={name}", *arguments.overrides]
        run = train(*recipe)
        table.add(f"tokens of `{name}` (10.7 M parameters)", tokens_of(*recipe), method="seed 1")
        table.add("validation loss after these tokens", run.loss, goal=goal, method="seed 1")
        table.add(f"minutes that `{name}` takes", run.seconds / 60, method="seed 1")


def tokens_of(*overrides: str) -> int:
    """Return the number of tokens that a run trains on."""
    subject = subject_of(overrides)
    return subject.settings.trainer.max_steps * subject.tokens_a_step


PARTS = {"cpu": losses, "peer": peer, "large": large}
