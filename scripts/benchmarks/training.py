"""What a training step costs, and what Lightning's Trainer adds; speed, start-up and memory beside nanoGPT.

The part step fits, and trains in a bare loop over the same batches, in turns. The bare loop waits for the device after
each part of a step, which the fit does not do. On a GPU, which works ahead of the processor, the split therefore says
where the time goes, and the ratio is too low.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from gptmini.user_error import UserError

from .harness import GPTMINI, Subject, Table, fit, in_turns, ratios, subject_of, timed
from .nanogpt import LAPTOP, check_checkout, command, copy_with_tokens, write_vocabulary

if TYPE_CHECKING:
    import torch

    from gptmini.training import GPTModule, TokenDataModule

PARTS = ("step", "peer", "start", "memory", "batches")
TURNS = 7
WARM_UP = 10  # steps at the start of each turn that are not counted
EXPERIMENT = "experiment=nanogpt_cpu"
# What neither program does while its speed is measured.
UNWATCHED = (
    "callbacks.samples=null",
    "callbacks.pictures=null",
    "trainer.val_every_steps=1000000",
    "trainer.val_tokens=1",
    "console=quiet",
)
BRIEF = 100  # steps of a run that is subtracted
# Rows and columns of the products that give the machine's own peak: large enough to keep the device busy.
MATRIX = {"cpu": 2048, "cuda": 8192, "mps": 4096}


class Bare(NamedTuple):
    """Seconds of a step of the bare loop."""

    whole: float
    parts: dict[str, float]


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("overrides", nargs="*", help="overrides as for gptmini train, as in data.path=input.txt")
    add("--steps", type=int, default=150, help="steps that count in each fit and loop")
    add("--long", type=int, default=800, help="steps of the longer run of the part peer")
    add("--sequences", type=int, default=8, help="sequences of 1,024 tokens of the part memory")
    add("--nanogpt", type=Path, help="a checkout of nanoGPT to measure beside")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the parts that were asked for."""
    check_checkout(arguments.nanogpt)
    arguments.overrides = [EXPERIMENT, *arguments.overrides]
    subject_of(arguments.overrides)  # tells a mistake, and prepares the tokens
    functions = {
        "step": measure_step,
        "peer": measure_peer,
        "start": measure_start,
        "memory": measure_memory,
        "batches": measure_batches,
    }
    for part in arguments.only:
        table.part = part
        if arguments.nanogpt is None and part in ("peer", "memory"):
            print(f"{part}: --nanogpt FOLDER names a checkout of nanoGPT to measure beside")
        else:
            functions[part](table, arguments)


# A step


def measure_step(table: Table, arguments: argparse.Namespace) -> None:
    """Run fit and bare loop in turns."""
    import torch

    from gptmini.model import GPT

    n_steps = WARM_UP + arguments.steps
    limits = [f"trainer.max_steps={n_steps}", f"trainer.val_every_steps={n_steps}"]
    subject = subject_of([*arguments.overrides, *limits, "trainer.val_tokens=1"])
    with tempfile.TemporaryDirectory() as folder:
        kinds = {
            "Trainer": partial(seconds_a_step, subject, Path(folder), arguments.steps),
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
    added = [1000 * (one - other) for one, other in zip(fits, bare, strict=True)]
    table.add("of a step, milliseconds in Lightning's Trainer", statistics.median(added))

    sizes = subject.settings.model.with_vocab_size(subject.store.tokenizer.n_vocab)
    n_tokens = subject.settings.trainer.global_batch_size * sizes.context_length
    with torch.device("meta"):  # counts without memory for the weights
        n_operations = GPT(sizes).flops_per_token * n_tokens
    peak = statistics.median(peak_flops(subject) for _ in range(3))
    share = 100 * n_operations / statistics.median(fits) / peak
    table.add("share of what matrix products reach on this machine, in percent", share)


def seconds_a_step(subject: Subject, folder: Path, n_steps: int) -> float:
    """Seconds of a step after the warm-up, through Lightning's Trainer without the run's own callbacks."""
    import lightning as L

    from gptmini.hardware import clock

    device = subject.settings.hardware.device
    times = []

    class Stopwatch(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
            # The hook is called after every micro-step, so that it sees the last step of the warm-up more than once.
            is_warm = trainer.global_step == WARM_UP and not times
            if is_warm or trainer.global_step == trainer.max_steps:
                times.append(clock(device))

    fit(subject, folder, callbacks=[Stopwatch()])
    return (times[-1] - times[0]) / n_steps


def bare_loop(subject: Subject, n_steps: int) -> Bare:
    """Train in a loop of a few lines, which does what the Trainer does.

    Raises UserError: a loss or a gradient is not finite, so that the loop would train something else than the fit.
    """
    import torch

    from gptmini.commands.train import assemble
    from gptmini.hardware import clock
    from gptmini.optim import set_learning_rate
    from gptmini.training.trainer_settings import micro_steps

    module, data = assemble(subject.settings, subject.store, None)
    device = subject.settings.hardware.device
    settings = module.settings
    module.to(device).train()
    optimizer = module.configure_optimizers()
    batches = iter(train_batches(data, device))
    n_micro_steps = micro_steps(settings.global_batch_size, settings.batch_size, 1)
    is_bf16 = subject.settings.hardware.precision == "bf16"
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
            raise UserError(f"step {step} is not finite; measure with a lower optimizer.lr")
        set_learning_rate(optimizer, module.schedule(step, max_steps=n_steps))
        optimizer.step()
        optimizer.zero_grad()
        end("optimizer")

    n_counted = n_steps - WARM_UP
    parts = {name: seconds / n_counted for name, seconds in spent.items()}
    return Bare((since - begun) / n_counted, parts)


def train_batches(data: "TokenDataModule", device: str) -> "torch.utils.data.DataLoader":
    """The batches of training from the first step on, with what they ask of a Trainer on one device."""
    import torch

    data.trainer = SimpleNamespace(
        global_step=0,
        world_size=1,
        global_rank=0,
        strategy=SimpleNamespace(root_device=torch.device(device)),
    )
    return data.train_dataloader()


def gradient_norm(module: "GPTModule") -> "torch.Tensor":
    """The norm of all gradients together, which are clipped if the settings say so."""
    import torch

    model = module.model
    clip = module.settings.gradient_clip
    if clip is not None:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def peak_flops(subject: Subject) -> float:
    """The operations a second of the fastest of ten square matrix products, in the precision of training."""
    import torch

    from gptmini.hardware import clock

    hardware = subject.settings.hardware
    dtype = torch.bfloat16 if hardware.precision == "bf16" else torch.float32
    n = MATRIX[hardware.device]
    a = torch.randn(n, n, device=hardware.device, dtype=dtype)
    b = torch.randn(n, n, device=hardware.device, dtype=dtype)
    times = []
    for _ in range(10):
        start = clock(hardware.device)
        a @ b
        times.append(clock(hardware.device) - start)
    return (
        2 * n**3 / min(times)
    )  # a multiplication and an addition for each of n terms of n * n sums


# Beside nanoGPT


def measure_peer(table: Table, arguments: argparse.Namespace) -> None:
    """The speed of the steps by which a run of --long steps is longer than a brief one, in turns with nanoGPT."""
    subject = subject_of(arguments.overrides)
    store = subject.store
    sizes = subject.config.model
    n_sequences = subject.settings.trainer.global_batch_size
    theirs = LAPTOP | {
        "block_size": sizes.context_length,
        "n_layer": sizes.n_layers,
        "n_head": sizes.n_heads,
        "n_embd": sizes.d_model,
        "batch_size": n_sequences,
        "eval_interval": 10**6,
        "eval_iters": 1,
        "log_interval": 10,
    }
    n_tokens = (arguments.long - BRIEF) * n_sequences * sizes.context_length

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_with_tokens(arguments.nanogpt, folder, store.tokens("train"), store.tokens("val"))
        write_vocabulary(folder, store.tokenizer.n_vocab)

        def ours(n_steps: int) -> float:
            run = tempfile.mkdtemp(dir=folder)
            typed = [*arguments.overrides, *UNWATCHED, f"trainer.max_steps={n_steps}"]
            return timed(*GPTMINI, "train", *typed, f"folder={run}", cwd=Path.cwd()).seconds

        def peer(n_steps: int) -> float:
            return timed(*command(theirs | {"max_iters": n_steps}), cwd=folder).seconds

        speeds = in_turns(
            arguments.turns,
            {
                "gptmini": lambda: n_tokens / (ours(arguments.long) - ours(BRIEF)),
                "nanoGPT": lambda: n_tokens / (peer(arguments.long) - peer(BRIEF)),
            },
        )
    what = "training speed of `nanogpt_cpu`, divided by that of nanoGPT's `train.py`"
    table.add_median(what, ratios(speeds["gptmini"], speeds["nanoGPT"]), goal="at least 1.05")
    for name, found in speeds.items():
        table.add_median(f"tokens a second of {name}", found)


def measure_memory(table: Table, arguments: argparse.Namespace) -> None:
    """The most memory that two steps at GPT-2's 124 M parameters take, in turns with nanoGPT."""
    import numpy as np

    from gptmini.commands.overrides import quoted

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Any ids of GPT-2's vocabulary will do; gptmini reads nanoGPT's token files.
        ids = np.random.default_rng(0).integers(0, 50257, 100_000)  # (n,)
        copy_with_tokens(arguments.nanogpt, folder, ids, ids)
        sequences = arguments.sequences

        def ours() -> float:
            typed = [
                "experiment=gpt2_124m",
                "data=tokens",
                f"data.path={quoted(str(folder / 'data/tokens/train.bin'))}",
                f"data.val_path={quoted(str(folder / 'data/tokens/val.bin'))}",
                "tokenizer=gpt2",
                "trainer.max_steps=2",
                f"trainer.global_batch_size={sequences}",
                f"trainer.batch_size={sequences}",
                f"data_dir={folder / 'prepared'}",
                f"folder={tempfile.mkdtemp(dir=folder)}",
                *UNWATCHED,
            ]
            return timed(*GPTMINI, "train", *typed).megabytes / 1024

        def peer() -> float:
            told = {
                "dataset": "tokens",
                "device": "cpu",
                "compile": False,
                "batch_size": sequences,
                "gradient_accumulation_steps": 1,
                "max_iters": 2,
                "eval_iters": 1,
                "eval_interval": 10**6,
                "bias": True,
            }
            return timed(*command(told), cwd=folder).megabytes / 1024

        found = in_turns(arguments.turns, {"gptmini": ours, "nanoGPT": peer})
    what = "peak memory at 124 M parameters, divided by nanoGPT's"
    table.add_median(what, ratios(found["gptmini"], found["nanoGPT"]), goal="at most 0.6")
    for name, gigabytes in found.items():
        table.add_median(f"gigabytes of {name}", gigabytes)


# Start-up and batches


def measure_start(table: Table, arguments: argparse.Namespace) -> None:
    """The seconds from the command to the first step, which the first line of metrics.jsonl tells."""
    subject_of(arguments.overrides)  # prepares the text

    def first_step() -> float:
        with tempfile.TemporaryDirectory() as name:
            run = Path(name, "run")
            typed = [*arguments.overrides, *UNWATCHED, f"folder={run}", "trainer.max_steps=1"]
            typed += ["callbacks.scalars.every_steps=1"]
            began = time.perf_counter()
            with subprocess.Popen(
                [*GPTMINI, "train", *typed], stdout=subprocess.DEVNULL
            ) as process:
                while process.poll() is None:
                    if has_line_of_step(run / "metrics.jsonl"):
                        break
                    time.sleep(0.005)
                seconds = time.perf_counter() - began
            if process.returncode:
                raise UserError("the run whose first step was to be timed failed")
            return seconds

    found = in_turns(arguments.turns, {"first step": first_step})["first step"]
    what = "seconds from the command to the first step, text prepared"
    table.add_median(what, found, goal="at most 3.5")


def has_line_of_step(path: Path) -> bool:
    """Whether a run has logged its first step."""
    return path.is_file() and b'"train/loss"' in path.read_bytes()


def measure_batches(table: Table, arguments: argparse.Namespace) -> None:
    """The microseconds that a resumed run takes to find and cut its first batch, in a text of a million tokens."""
    import numpy as np

    from gptmini.data.batches import gather, step_sequences, window_starts

    data = np.zeros(1_000_000, dtype=np.uint16)
    for step in (10, 10_000_000):
        took = []
        for _ in range(50):
            began = time.perf_counter()
            sequences = step_sequences(
                step,
                0,
                global_batch_size=16,
                batch_size=16,
                rank=0,
                n_ranks=1,
            )
            starts = window_starts(sequences, n_tokens=len(data), context_length=128, seed=1)
            gather(data, starts, 128)
            took.append(1e6 * (time.perf_counter() - began))
        what = f"microseconds to find and cut the batch of step {step:,}"
        table.add(what, statistics.median(took), method="50 times")
