"""What each trick of a recipe is worth: experiment=shakespeare_char_cpu with one of them taken away, for several seeds.

All variants of a seed train in a row. Each row says how far the last validation loss lies above that of the whole
recipe, on average over the seeds.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from gptmini.commands.compose import compose

from .fits import Subject, fit, subject_of
from .harness import Table, add_overrides, add_seeds, differences, in_turns

RECIPE = "experiment=shakespeare_char_cpu"
WHOLE = "the whole recipe"
# For each variant the overrides of the recipe that put something plainer in a trick's place.
TRICKS = {
    WHOLE: (),
    "AdamW for Muon": ("optimizer=adamw",),  # clipping and a warm-up did worse
    "no smear of embeddings": ("model.smear=0",),
    "no smear before MLPs": ("model.mlp_smear=0",),
    "one position before MLPs for two": ("model.mlp_smear=1",),
    "learned positions for rotary": ("model.position=learned", "model.rotary_base=null"),
    "no query-key norm": ("model.qk_norm=false",),
    "squared ReLU for the square": ("model.mlp=relu2",),
    "GELU for the square": ("model.mlp=gelu",),
    "layer norm for RMS norm": ("model.norm=layernorm",),
    "GPT-2's first weights": ("model.init=gpt2",),
    "tied unembedding": ("model.tie_embeddings=true",),
    "no norm after the embedding": ("model.embedding_norm=false",),
    "logits not capped": ("model.logit_softcap=null",),
    "momentum 0.95 from the first step": ("optimizer.momentum=[0.95,0.95]",),
    "five Newton-Schulz steps for four": ("optimizer.ns_steps=5",),
    "three Newton-Schulz steps for four": ("optimizer.ns_steps=3",),
    "rates that fall over the last 0.7 of all steps": ("schedule.decay_fraction=0.7",),
    "cosine for the straight line": (
        "schedule=cosine",
        "schedule.warmup_steps=0",
        "schedule.final_fraction=0",
    ),
}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_overrides(parser)
    add_seeds(parser)


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Train every variant once for each seed."""
    # All variants and seeds are checked before the first one trains.
    variants = {}
    for name, swaps in TRICKS.items():
        variants[name] = [variant(arguments.overrides, swaps, seed) for seed in arguments.seeds]

    losses: dict[str, list[float]] = {name: [] for name in TRICKS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(len(arguments.seeds)):
            kinds = {
                name: partial(loss_of, each[number], Path(folder))
                for name, each in variants.items()
            }
            for name, (loss,) in in_turns(1, kinds).items():
                losses[name].append(loss)

    method = f"mean of seeds {', '.join(map(str, arguments.seeds))}"
    for name, each in losses.items():
        what = f"{name}: validation loss"
        figures = each
        if name != WHOLE:
            what = f"{name}: added loss"
            figures = differences(each, losses[WHOLE])
        table.add(what, statistics.mean(figures), spread=figures, method=method)


def variant(overrides: Sequence[str], swaps: Sequence[str], seed: int) -> Subject:
    """The recipe with the swaps that take a trick away.

    A swap that names a group, as in optimizer=adamw, replaces the recipe's whole group by that of the default run, with
    the swaps of the group's own keys.
    """
    named = {swap.split("=")[0] for swap in swaps if "." not in swap.split("=")[0]}
    of_groups = [swap for swap in swaps if swap.split("=")[0].split(".")[0] in named]
    others = [swap for swap in swaps if swap not in of_groups]

    def replace_groups(config: DictConfig) -> None:
        for group in named:
            config[group] = compose("train", of_groups)[0][group]

    return subject_of([RECIPE, *overrides, *others, f"seed={seed}"], replace_groups)


def loss_of(subject: Subject, folder: Path) -> float:
    """The last validation loss of a variant, which is trained without its callbacks."""
    return fit(subject, folder).evaluation.loss
