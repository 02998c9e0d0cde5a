"""What each trick of a recipe is worth: experiment=shakespeare_char_cpu with one of them taken away, for several seeds.

Prints the mean of the last validation losses, the difference to the whole recipe seed by seed, and the training time.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import lightning as L
import torch
from omegaconf import DictConfig

from gptmini.commands.errors import Parser
from gptmini.commands.launching import compose_checked
from gptmini.commands.plan import Plan, build, check_configuration, open_tokens
from gptmini.data import TokenStore
from gptmini.hardware import keep_freed_memory
from gptmini.training import build_trainer

RECIPE = "experiment=shakespeare_char_cpu"
TRICKS = {  # what stands in its place: overrides of the recipe
    "the whole recipe": (),
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
    "cosine for the trapezoid": ("schedule=cosine", "schedule.warmup_steps=0", "schedule.final_fraction=0"),
}


class Stopwatch(L.Callback):
    """Training time, validation at the end not counted."""

    def on_train_start(self, trainer: L.Trainer, *_: object) -> None:
        """Begin."""
        self.start = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Read the clock after every step; validation comes later."""
        self.seconds = time.perf_counter() - self.start


def composed(overrides: list[str], swaps: tuple[str, ...]) -> DictConfig:
    """The recipe with overrides and swaps; a group that a swap names is the default run's, with its own swaps."""
    groups = [swap.split("=")[0] for swap in swaps if "." not in swap.split("=")[0]]
    foreign = [swap for swap in swaps if swap.split("=")[0].split(".")[0] in groups]
    own = [swap for swap in swaps if swap not in foreign]
    config = compose_checked("train", [*overrides, *own])
    for group in groups:
        config[group] = compose_checked("train", foreign)[group]
    return config


def run(plan: Plan, store: TokenStore, seed: int, folder: Path) -> tuple[float, float]:
    """Last validation loss in nats per token, and seconds of training."""
    unwatched = replace(plan, seed=seed, callbacks={})
    fitted = build(unwatched, store, None)
    stopwatch = Stopwatch()
    trainer = build_trainer(
        fitted.module.settings,
        folder,
        device=plan.hardware.device,
        precision=plan.hardware.precision,
        callbacks=[stopwatch],
        loggers=[],
    )
    trainer.fit(fitted.module, fitted.data)
    return fitted.module.evaluation.loss, stopwatch.seconds


def main() -> None:
    """Train each variant once for each seed, all variants of a seed in a row, and print a table."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="of the recipe, as in data.path=input.txt")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one run each (default: 1 2 3)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error("--threads must be at least 1")

    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    configs = {name: composed([RECIPE, *arguments.overrides], swaps) for name, swaps in TRICKS.items()}
    plans = {name: check_configuration(config) for name, config in configs.items()}
    store, _ = open_tokens(configs["the whole recipe"], None)

    results: dict[str, list[tuple[float, float]]] = {name: [] for name in plans}
    with tempfile.TemporaryDirectory() as folder:
        for seed in arguments.seeds:
            for name, plan in plans.items():
                results[name].append(run(plan, store, seed, Path(folder)))
                print(f"seed {seed}: {name}", file=sys.stderr, flush=True)

    whole = results["the whole recipe"]
    print("| taken away | val loss | difference, seed by seed | training |\n|---|---|---|---|")
    for name, each in results.items():
        differences = [loss - base for (loss, _), (base, _) in zip(each, whole, strict=True)]
        spread = "" if each is whole else ", ".join(f"{difference:+.3f}" for difference in differences)
        loss, seconds = (statistics.mean(column) for column in zip(*each, strict=True))
        print(f"| {name} | {loss:.4f} | {spread} | {seconds:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
