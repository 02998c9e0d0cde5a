"""What a training step costs, and what Lightning's Trainer adds: a fit and a bare loop over the same batches, in turns.

Prints tokens a second, the step split into data, forward, backward, optimizer and framework, the share of this
machine's matrix products that training reaches, and peak memory. The bare loop waits for the device after each part,
which the fit does not do. On a GPU, which works ahead of the processor, the split therefore says where the time goes,
and the ratio is too low.
"""

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import torch

from gptmini.commands.compose import compose
from gptmini.commands.errors import Parser
from gptmini.commands.resumed import going_on
from gptmini.commands.settings import Settings, build_settings
from gptmini.commands.tokens import open_tokens
from gptmini.commands.train import assemble
from gptmini.data import TokenStore
from gptmini.hardware import Hardware, clock, keep_freed_memory, peak_memory
from gptmini.model import GPT
from gptmini.optim import set_learning_rate
from gptmini.tokenizer import from_dict
from gptmini.training import GPTModule, TokenDataModule, build_trainer
from gptmini.training.monitoring.measures import PARTS
from gptmini.training.trainer_settings import TrainerSettings, micro_steps
from gptmini.user_error import UserError

WARM_UP = 10  # steps at the start of each turn that are not counted

# Rows and columns of the products that give the machine's own peak: large enough to keep the device busy.
MATRIX = {"cpu": 2048, "cuda": 8192, "mps": 4096}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Seconds of a step in one turn."""

    fit: float  # of Lightning's Trainer
    bare: float  # of the bare loop
    parts: dict[str, float]  # of the bare loop, by part


class Stopwatch(L.Callback):
    """Measures the seconds from the end of the warm-up to the end of the last step."""

    start: float | None = None
    seconds: float

    def __init__(self, device: str) -> None:
        self.device = device

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Read the clock after the warm-up and after the last step."""
        # The hook is called after every micro-step, so that it sees the last step of the warm-up more than once.
        if trainer.global_step == WARM_UP and self.start is None:
            self.start = clock(self.device)
        elif trainer.global_step == trainer.max_steps:
            self.seconds = clock(self.device) - self.start


class PartClock:
    """Splits the time of a loop into parts."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.restart()

    def restart(self) -> None:
        """Forget the seconds so far, and start the first part."""
        self.spent = dict.fromkeys(PARTS, 0.0)
        self.begun = clock(self.device)
        self.since = self.begun

    def end(self, part: str) -> None:
        """Add the seconds since the end of the last part to this part."""
        now = clock(self.device)
        self.spent[part] += now - self.since
        self.since = now

    def seconds(self) -> float:
        """Return the seconds since the restart."""
        return clock(self.device) - self.begun


def main() -> None:
    """Run fit and bare loop in turns, and print what a step takes."""
    arguments = parse_arguments()
    n_steps = WARM_UP + arguments.steps
    config, typed = compose(
        "train",
        [
            *arguments.overrides,
            f"trainer.max_steps={n_steps}",
            f"trainer.val_every_steps={n_steps}",
            "trainer.val_tokens=1",
            "trainer.devices=1",
        ],
    )
    config, typed = going_on(config, typed)
    settings = build_settings(config)
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    store, _ = open_tokens(config, typed, settings)

    turns = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.turns):
            seconds = fit(settings, store, Path(folder) / str(number))
            bare, parts = bare_loop(settings, store, n_steps)
            turn = Turn(fit=seconds / arguments.steps, bare=bare, parts=parts)
            turns.append(turn)

    peaks = [peak_flops(settings.hardware) for _ in range(3)]
    report(turns, settings, store, statistics.median(peaks))


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = Parser(prog="benchmark.py training", description=__doc__.splitlines()[0])
    parser.add_argument(
        "overrides",
        nargs="*",
        help="overrides as for gptmini train, as in experiment=nanogpt_cpu data.path=input.txt",
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=7,
        help="pairs of a fit and a bare loop (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=150,
        help="steps that are counted in each fit and each loop (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="CPU threads (default: %(default)s)",
    )

    arguments = parser.parse_args()
    if min(arguments.turns, arguments.steps, arguments.threads) < 1:
        parser.error("--turns, --steps and --threads must be at least 1")
    return arguments


def fit(settings: Settings, store: TokenStore, folder: Path) -> float:
    """Train through Lightning's Trainer, and return the seconds of all steps after the warm-up.

    The run's own callbacks are left out: benchmark.py watching measures what they cost.
    """
    module, data = assemble(settings, store, None)
    stopwatch = Stopwatch(settings.hardware.device)
    trainer = build_trainer(
        module.settings,
        folder,
        device=settings.hardware.device,
        precision=settings.hardware.precision,
        callbacks=[stopwatch],
        loggers=[],
    )
    trainer.fit(module, data)
    return stopwatch.seconds


def bare_loop(
    settings: Settings, store: TokenStore, n_steps: int
) -> tuple[float, dict[str, float]]:
    """Train in a loop of a few lines, which does what the Trainer does.

    Returns:
        Seconds of a step after the warm-up, and seconds of each part of a step.

    Raises:
        UserError: a loss or a gradient is not finite, so that the loop would train something else than the fit.
    """
    module, data = assemble(settings, store, None)
    device = settings.hardware.device
    module.to(device).train()
    optimizer = module.configure_optimizers()
    batches = iter(train_batches(data, device))
    n_micro_steps = micro_steps(
        module.settings.global_batch_size,
        module.settings.batch_size,
        1,
    )
    autocast = torch.autocast(device, torch.bfloat16, enabled=settings.hardware.precision == "bf16")

    parts = PartClock(device)
    for step in range(n_steps):
        if step == WARM_UP:
            parts.restart()

        for _ in range(n_micro_steps):
            tokens, targets = next(batches)  # (B, T) each
            tokens = tokens.to(device)
            targets = targets.to(device)
            parts.end("data")
            with autocast:
                loss = module.compute_loss(tokens, targets)
            parts.end("forward")
            (loss / n_micro_steps).backward()
            parts.end("backward")

        norm = gradient_norm(module, module.settings)
        if not (norm.isfinite() & loss.isfinite()).item():
            raise UserError(f"step {step} is not finite; measure with a lower optimizer.lr")
        set_learning_rate(optimizer, module.schedule(step, max_steps=n_steps))
        optimizer.step()
        optimizer.zero_grad()
        parts.end("optimizer")
    seconds = parts.seconds()

    n_counted = n_steps - WARM_UP
    return seconds / n_counted, {name: spent / n_counted for name, spent in parts.spent.items()}


def train_batches(data: TokenDataModule, device: str) -> torch.utils.data.DataLoader:
    """Return the batches of training from the first step on, with what they ask of a Trainer on one device."""
    data.trainer = SimpleNamespace(
        global_step=0,
        world_size=1,
        global_rank=0,
        strategy=SimpleNamespace(root_device=torch.device(device)),
    )
    return data.train_dataloader()


def gradient_norm(module: GPTModule, settings: TrainerSettings) -> torch.Tensor:
    """Return the norm of all gradients together, which are clipped if the settings say so."""
    model = module.model
    if settings.gradient_clip is not None:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def peak_flops(hardware: Hardware) -> float:
    """Return the operations a second of the fastest of ten square matrix products, in the precision of training."""
    device = hardware.device
    dtype = torch.bfloat16 if hardware.precision == "bf16" else torch.float32
    n = MATRIX[device]
    a = torch.randn(n, n, device=device, dtype=dtype)
    b = torch.randn(n, n, device=device, dtype=dtype)

    times = []
    for _ in range(10):
        start = clock(device)
        a @ b
        times.append(clock(device) - start)
    operations = 2 * n**3  # a multiplication and an addition for each of n terms of n * n sums
    return operations / min(times)


def report(turns: list[Turn], settings: Settings, store: TokenStore, peak: float) -> None:
    """Print the medians of all turns: the split of a step, speed, the Trainer's ratio, utilisation and memory.

    Args:
        turns: the seconds of a step.
        settings: the settings that were trained with.
        store: its tokens.
        peak: operations a second that matrix products reach on this machine.
    """
    sizes = settings.model.with_vocab_size(from_dict(store.tokenizer_state).n_vocab)
    n_tokens = settings.trainer.global_batch_size * sizes.context_length
    with torch.device("meta"):  # counts without memory for the weights
        n_operations = GPT(sizes).flops_per_token * n_tokens

    for name in PARTS:
        seconds = statistics.median(turn.parts[name] for turn in turns)
        print(f"{name:10} {1000 * seconds:7.2f} ms a step")
    framework = statistics.median(turn.fit - turn.bare for turn in turns)
    print(f"{'framework':10} {1000 * framework:7.2f} ms a step")

    fit = statistics.median(turn.fit for turn in turns)
    print(
        f"{'Trainer':10} {1000 * fit:7.2f} ms a step in all, median of {len(turns)}; "
        f"{n_tokens / fit:,.0f} tokens/s"
    )

    ratios = [turn.fit / turn.bare for turn in turns]
    ratio = statistics.median(ratios)
    print(
        f"{'ratio':10} {ratio:7.3f} to the bare loop, from {min(ratios):.3f} to {max(ratios):.3f}"
    )

    share = n_operations / fit / peak
    print(f"{'use':10} {share:7.1%} of {peak / 1e9:,.0f} GFLOP/s that matrix products reach")

    memory = peak_memory(torch.device(settings.hardware.device))
    if memory is not None:
        print(f"{'memory':10} {memory / 1e9:7.2f} GB at the peak, on {settings.hardware}")


if __name__ == "__main__":
    main()
