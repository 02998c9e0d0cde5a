"""Measure the time of a training step, the overhead of Lightning's Trainer, and speed, start-up and memory.

The part step trains with Lightning's Trainer and in a bare loop over the same batches, in turns. The bare loop waits
for the device after each part of a step; the Trainer does not. On a GPU, which runs asynchronously, the ratio is
therefore too low, but the bare loop still shows where the time goes. The parts peer and memory compare with nanoGPT.
"""

import argparse
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from gptmini.configuration.compose import quoted
from gptmini.optim import set_learning_rate
from gptmini.system.errors import UserError
from gptmini.system.hardware import clock
from gptmini.training import GPTModule, TokenDataModule
from gptmini.training.assembling import hardware_of
from gptmini.training.trainer_settings import micro_steps

from . import nanogpt
from .fits import StepClock, Subject, fit, subject_of
from .harness import (
    GPTMINI,
    UNWATCHED,
    Table,
    add_overrides,
    differences,
    given,
    in_turns,
    positive,
    ratios,
    timed,
    train,
)

TURNS = 7
WARM_UP = 10  # steps at the start of each turn that are not measured
EXPERIMENT = "experiment=nanogpt_cpu"
# Overrides that switch off everything except training.
BARE = (*UNWATCHED, "trainer.val_every_steps=1000000", "trainer.val_tokens=1", "console=quiet")
BRIEF = 100  # steps of the brief run, whose time is subtracted


class Bare(NamedTuple):
    """Seconds of a step of the bare loop, in total and by part."""

    whole: float
    parts: dict[str, float]


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_overrides(parser)
    nanogpt.add_nanogpt(parser)
    add = parser.add_argument
    add("--steps", type=positive, default=150, help="measured steps per turn")
    add("--long", type=positive, default=800, help="steps of the longer run in the part peer")
    note = "sequences of 1,024 tokens in the part memory"
    add("--sequences", type=positive, default=8, help=note)


def prepare(arguments: argparse.Namespace) -> None:
    """Prepare the tokens, and report a mistake in the overrides early."""
    arguments.overrides.insert(0, EXPERIMENT)
    subject_of(arguments.overrides)


# A step


def measure_step(table: Table, arguments: argparse.Namespace) -> None:
    """Measure a step with Lightning's Trainer and in the bare loop, in turns."""
    n_steps = WARM_UP + arguments.steps
    limits = [f"trainer.max_steps={n_steps}", f"trainer.val_every_steps={n_steps}"]
    subject = subject_of([*arguments.overrides, *limits, "trainer.val_tokens=1"])
    with tempfile.TemporaryDirectory() as folder:
        kinds = {
            "Trainer": partial(seconds_a_step, subject, Path(folder)),
            "bare": partial(bare_loop, subject, n_steps),
        }
        found = in_turns(arguments.turns, kinds)
    fits = found["Trainer"]
    bare = [turn.whole for turn in found["bare"]]

    what = "time of a step of Lightning's Trainer, divided by that of a bare loop"
    table.add_median(what, ratios(fits, bare), goal="at most 1.03")
    table.add_median("milliseconds of such a step", [1000 * seconds for seconds in fits])
    for name in found["bare"][0].parts:
        spent = [1000 * turn.parts[name] for turn in found["bare"]]
        table.add(f"of a step, milliseconds in {name}", statistics.median(spent))
    added = [1000 * seconds for seconds in differences(fits, bare)]
    table.add("of a step, milliseconds in Lightning's Trainer", statistics.median(added))


def seconds_a_step(subject: Subject, folder: Path) -> float:
    """Return the seconds per step after the warm-up, with Lightning's Trainer and without the run's callbacks."""
    step_clock = StepClock(hardware_of(subject.settings).device)
    fit(subject, folder, callbacks=[step_clock])
    return statistics.mean(step_clock.seconds()[WARM_UP - 1 :])


def bare_loop(subject: Subject, n_steps: int) -> Bare:
    """Train in a loop of a few lines that does the same as the Trainer.

    Raises UserError if a loss or a gradient is not finite, because the loop would then differ from the Trainer.
    """
    module, data = subject.assemble()
    device = module.hardware.device
    settings = module.settings
    module.to(device).train()
    optimizer = module.configure_optimizers()
    batches = iter(train_batches(data, device))
    n_micro_steps = micro_steps(settings.global_batch_size, settings.batch_size, 1)
    is_bf16 = module.hardware.precision == "bf16"
    autocast = torch.autocast(device, torch.bfloat16, enabled=is_bf16)

    spent = dict.fromkeys(("data", "forward", "backward", "optimizer"), 0.0)
    since = begun = clock(device)

    def end(part: str) -> None:
        nonlocal since
        now = clock(device)
        spent[part] += now - since
        since = now

    for step in range(n_steps):
        if step == WARM_UP:
            spent = dict.fromkeys(spent, 0.0)
            since = begun = clock(device)

        for _ in range(n_micro_steps):
            tokens, targets = next(batches)  # (B, T) each
            tokens = tokens.to(device)
            targets = targets.to(device)
            end("data")
            with autocast:
                loss = module.compute_loss(tokens, targets)
            end("forward")
            (loss / n_micro_steps).backward()
            end("backward")

        norm = gradient_norm(module)
        if not (norm.isfinite() & loss.isfinite()).item():
            raise UserError(f"step {step} is not finite; use a lower optimizer.lr")
        set_learning_rate(optimizer, module.schedule(step, max_steps=n_steps))
        optimizer.step()
        optimizer.zero_grad()
        end("optimizer")

    n_counted = n_steps - WARM_UP
    parts = {name: seconds / n_counted for name, seconds in spent.items()}
    return Bare((since - begun) / n_counted, parts)


def train_batches(data: TokenDataModule, device: str) -> DataLoader:
    """Return the training batches from the first step on, with a stub for the Trainer that they need."""
    data.trainer = SimpleNamespace(
        global_step=0,
        world_size=1,
        global_rank=0,
        strategy=SimpleNamespace(root_device=torch.device(device)),
    )
    return data.train_dataloader()


def gradient_norm(module: GPTModule) -> torch.Tensor:
    """Return the norm of all gradients together; clip them if the settings say so."""
    model = module.model
    clip = module.settings.gradient_clip
    if clip is not None:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


# Comparison with nanoGPT


def measure_peer(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the training speed from the difference between a long and a brief run, in turns with nanoGPT."""
    source = given(arguments, "nanogpt")
    subject = subject_of(arguments.overrides)
    store = subject.store
    nanogpt_options = nanogpt.LAPTOP | nanogpt.sizes_of(subject.settings.model)
    nanogpt_options |= {
        "batch_size": subject.settings.trainer.global_batch_size,
        "eval_interval": nanogpt.NEVER,
        "eval_iters": 1,
        "log_interval": 10,
    }
    n_tokens = (arguments.long - BRIEF) * subject.tokens_a_step

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nanogpt.copy(
            source,
            folder,
            train=store.tokens("train"),
            val=store.tokens("val"),
            n_vocab=store.tokenizer.n_vocab,
        )

        def ours(n_steps: int) -> float:
            return train(*arguments.overrides, *BARE, f"trainer.max_steps={n_steps}").seconds

        def theirs(n_steps: int) -> float:
            changed = nanogpt_options | {"max_iters": n_steps}
            return timed(*nanogpt.command(changed), cwd=folder).seconds

        speeds = in_turns(
            arguments.turns,
            {
                "gptmini": lambda: n_tokens / (ours(arguments.long) - ours(BRIEF)),
                "nanoGPT": lambda: n_tokens / (theirs(arguments.long) - theirs(BRIEF)),
            },
        )
    what = "training speed of `nanogpt_cpu`, divided by that of nanoGPT's `train.py`"
    table.add_median(what, ratios(speeds["gptmini"], speeds["nanoGPT"]), goal="at least 1.15")
    for name, found in speeds.items():
        table.add_median(f"tokens a second of {name}", found)


def measure_memory(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the peak memory of two steps at GPT-2's 124 M parameters, in turns with nanoGPT."""
    source = given(arguments, "nanogpt")
    sequences = arguments.sequences
    # Random ids of GPT-2's vocabulary are enough. gptmini reads nanoGPT's token files.
    ids = np.random.default_rng(0).integers(0, 50257, 100_000)  # (n,)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nanogpt.copy(source, folder, train=ids, val=ids)
        overrides = [
            "experiment=gpt2_124m",
            "data=tokens",
            f"data.path={quoted(str(folder / 'data/tokens/train.bin'))}",
            f"data.val_path={quoted(str(folder / 'data/tokens/val.bin'))}",
            "tokenizer=gpt2",
            "trainer.max_steps=2",
            f"trainer.global_batch_size={sequences}",
            f"trainer.batch_size={sequences}",
            f"data_dir={quoted(str(folder / 'prepared'))}",
            *BARE,
        ]
        nanogpt_options = {
            "device": "cpu",
            "compile": False,
            "batch_size": sequences,
            "gradient_accumulation_steps": 1,
            "max_iters": 2,
            "eval_iters": 1,
            "eval_interval": nanogpt.NEVER,
            "bias": True,
        }
        found = in_turns(
            arguments.turns,
            {
                "gptmini": lambda: train(*overrides).megabytes / 1024,
                "nanoGPT": lambda: (
                    timed(*nanogpt.command(nanogpt_options), cwd=folder).megabytes / 1024
                ),
            },
        )
    what = "peak memory at 124 M parameters, divided by nanoGPT's"
    table.add_median(what, ratios(found["gptmini"], found["nanoGPT"]), goal="at most 0.6")
    for name, gigabytes in found.items():
        table.add_median(f"gigabytes of {name}", gigabytes)


# Start-up


def measure_start(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the seconds to the first step, of a run of one step, and to the error about an unknown key."""
    overrides = [
        *arguments.overrides,
        *BARE,
        "trainer.max_steps=1",
        "callbacks.scalars.every_steps=1",
    ]

    def first_step() -> float:
        run = train(*overrides)
        (logged,) = [line["time"] for line in run.lines if "train/loss" in line]
        return logged - run.began

    def refused() -> float:
        # The exit code of a mistake is 2.
        command = ("bash", "-c", '"$@"; test $? = 2', "bash", *GPTMINI, "train")
        return timed(*command, "trainer.max_stepz=1").seconds

    found = in_turns(
        arguments.turns,
        {
            "first step": first_step,
            "run of one step": lambda: train(*overrides).seconds,
            "imports": lambda: timed(sys.executable, "-c", "import torch, lightning").seconds,
            "refused key": refused,
        },
    )
    what = "seconds from the command to the first step, text prepared"
    table.add_median(what, found["first step"], goal="at most 3")
    whole = found["run of one step"]
    table.add_median("seconds of a run of one step, text prepared", whole)
    what = "time of this run, divided by that of `import torch, lightning`"
    table.add_median(what, ratios(whole, found["imports"]), goal="at most 1")
    what = "seconds to the error about an unknown key"
    table.add_median(what, found["refused key"], goal="at most 0.4")


PARTS = {
    "step": measure_step,
    "peer": measure_peer,
    "start": measure_start,
    "memory": measure_memory,
}
