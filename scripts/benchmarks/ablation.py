"""What each trick of a recipe is worth: experiment=shakespeare_char_cpu with one of them taken away, for several seeds.

Prints for each variant the mean of the last validation losses, the difference to the whole recipe seed by seed, and the
mean training time.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lightning as L
import torch
from omegaconf import DictConfig

from gptmini.commands.compose import Typed, compose
from gptmini.commands.errors import Parser
from gptmini.commands.resumed import going_on
from gptmini.commands.settings import Settings, build_settings
from gptmini.commands.tokens import open_tokens
from gptmini.commands.train import assemble
from gptmini.data import TokenStore
from gptmini.hardware import keep_freed_memory
from gptmini.model import check_seed
from gptmini.training import build_trainer

RECIPE = "experiment=shakespeare_char_cpu"
WHOLE = "the whole recipe"
# For each variant the overrides of the recipe that put something plainer in a trick's place.
TRICKS = {
    WHOLE: (),
    "AdamW for Muon": ("optimizer=adamw",),  # clipping and a warm-up did worse
    "no smear of embeddings": ("model.smear=0",),
    "no smear before MLPs": ("model.mlp_smear=0",),
    "learned positions for rotary": ("model.position=learned", "model.rotary_base=null"),
    "no query-key norm": ("model.qk_norm=false",),
    "GELU for squared ReLU": ("model.mlp=gelu",),
    "layer norm for RMS norm": ("model.norm=layernorm",),
    "GPT-2's first weights": ("model.init=gpt2",),
    "tied unembedding": ("model.tie_embeddings=true",),
    "no norm after the embedding": ("model.embedding_norm=false",),
    "logits not capped": ("model.logit_softcap=null",),
    "momentum 0.95 for 0.8": ("optimizer.momentum=[0.95,0.95]",),
    "five Newton-Schulz steps for four": ("optimizer.ns_steps=5",),
    "three Newton-Schulz steps for four": ("optimizer.ns_steps=3",),
    "cosine for the trapezoid": (
        "schedule=cosine",
        "schedule.warmup_steps=0",
        "schedule.final_fraction=0",
    ),
}


class Stopwatch(L.Callback):
    """Measures the seconds of training, without the validation at the end."""

    def on_train_start(self, trainer: L.Trainer, *_: object) -> None:
        """Start the watch."""
        self.start = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Read the watch after every micro-step; the validation comes after the last reading."""
        self.seconds = time.perf_counter() - self.start


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to."""

    loss: float  # the last validation loss, in nats per token
    seconds: float  # of training


def main() -> None:
    """Train every variant once for each seed, all variants of a seed in a row, and print a table."""
    arguments = parse_arguments()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)

    # All variants are checked before the first one trains.
    configs = {}
    variants = {}
    for name, swaps in TRICKS.items():
        config, typed = composed([RECIPE, *arguments.overrides], swaps)
        configs[name] = going_on(config, typed)
        variants[name] = build_settings(configs[name][0])
    store, _ = open_tokens(*configs[WHOLE], variants[WHOLE])

    results: dict[str, list[Result]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as folder:
        for seed in arguments.seeds:
            for name, settings in variants.items():
                results[name].append(run(settings, store, seed, Path(folder)))
                print(f"seed {seed}: {name}", file=sys.stderr, flush=True)

    print_table(results)


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = Parser(prog="benchmark.py ablation", description=__doc__.splitlines()[0])
    parser.add_argument(
        "overrides",
        nargs="*",
        help="overrides of the recipe, as in data.path=input.txt",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[1, 2, 3],
        help="seeds, with one run of every variant for each (default: 1 2 3)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="CPU threads (default: %(default)s)",
    )

    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error("--threads must be at least 1")
    for seed in arguments.seeds:
        check_seed(seed=seed)
    return arguments


def composed(overrides: Sequence[str], swaps: Sequence[str]) -> tuple[DictConfig, Typed]:
    """Compose the recipe with overrides and with the swaps that take a trick away.

    A swap that names a group, as in optimizer=adamw, replaces the recipe's whole group by that of the default run, with
    the swaps of the group's own keys.
    """
    groups = [swap.split("=")[0] for swap in swaps]
    groups = [group for group in groups if "." not in group]
    of_groups = []
    others = []
    for swap in swaps:
        top_key = swap.split("=")[0].split(".")[0]
        if top_key in groups:
            of_groups.append(swap)
        else:
            others.append(swap)

    config, typed = compose("train", [*overrides, *others])
    for group in groups:
        config[group] = compose("train", of_groups)[0][group]
    return config, typed


def run(settings: Settings, store: TokenStore, seed: int, folder: Path) -> Result:
    """Train a variant from one seed, without its callbacks."""
    seeded = replace(settings, root=replace(settings.root, seed=seed))
    module, data = assemble(seeded, store, None)
    stopwatch = Stopwatch()
    trainer = build_trainer(
        module.settings,
        folder,
        device=settings.hardware.device,
        precision=settings.hardware.precision,
        callbacks=[stopwatch],
        loggers=[],
    )
    trainer.fit(module, data)
    return Result(loss=module.evaluation.loss, seconds=stopwatch.seconds)


def print_table(results: dict[str, list[Result]]) -> None:
    """Print a row of Markdown for each variant, from its results in the order of the seeds."""
    print("| taken away | val loss | difference, seed by seed | training |")
    print("|---|---|---|---|")
    for name, each in results.items():
        differences = []
        if name != WHOLE:
            for result, whole in zip(each, results[WHOLE], strict=True):
                differences.append(f"{result.loss - whole.loss:+.3f}")

        loss = statistics.mean(result.loss for result in each)
        seconds = statistics.mean(result.seconds for result in each)
        print(f"| {name} | {loss:.4f} | {', '.join(differences)} | {seconds:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
