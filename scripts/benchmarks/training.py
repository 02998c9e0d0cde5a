"""What a training step costs, and what Lightning's Trainer adds: a fit and a bare loop over the same batches, in turns.

Prints tokens a second, the step split into data, forward, backward, optimizer and framework, the share of this
machine's matrix products that training reaches, and peak memory. The bare loop waits for the device after each part, as
the fit does not: on a GPU, which works ahead, the split says where time goes, and the ratio is too low.
"""

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import torch

from gptmini.checks import UserError
from gptmini.commands.errors import Parser
from gptmini.commands.launching import compose_checked
from gptmini.commands.plan import Plan, build, check_configuration, open_tokens
from gptmini.data import TokenStore
from gptmini.hardware import Hardware, clock, keep_freed_memory, peak_memory
from gptmini.model import GPT
from gptmini.optim import set_learning_rate
from gptmini.tokenizer import from_dict
from gptmini.training import build_trainer
from gptmini.training.monitoring.measures import PARTS
from gptmini.training.settings import micro_steps

WARM_UP = 10  # steps at the start of each turn that are not counted
MATRIX = {"cpu": 2048, "cuda": 8192, "mps": 4096}  # rows and columns of the products that give the peak


class Stopwatch(L.Callback):
    """Time from the end of the warm-up to the end of the last step."""

    start: float | None = None
    seconds: float

    def __init__(self, device: str) -> None:
        self.device = device

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Read the clock at the two steps that matter."""
        if trainer.global_step == WARM_UP and self.start is None:  # its later calls are micro-steps of the next step
            self.start = clock(self.device)
        elif trainer.global_step == trainer.max_steps:
            self.seconds = clock(self.device) - self.start


def peak_flops(hardware: Hardware) -> float:
    """Operations a second of the best of several square matrix products, in the precision of training."""
    device = hardware.device
    dtype = torch.bfloat16 if hardware.precision == "bf16" else torch.float32
    n = MATRIX[device]
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(10):
        start = clock(device)
        a @ b
        times.append(clock(device) - start)
    return 2 * n**3 / min(times)


def main() -> None:
    """Alternate fit and bare loop, and print what each step took."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "overrides", nargs="*", help="as for gptmini train, as in experiment=nanogpt_cpu data.path=input.txt"
    )
    parser.add_argument("--turns", type=int, default=7, help="of each, one after the other (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=150, help="counted in each turn (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    arguments = parser.parse_args()
    if min(arguments.turns, arguments.steps, arguments.threads) < 1:
        parser.error("--turns, --steps and --threads must be at least 1")

    n_steps = WARM_UP + arguments.steps
    ours = (
        f"trainer.max_steps={n_steps}",
        f"trainer.val_every_steps={n_steps}",
        "trainer.val_tokens=1",
        "trainer.devices=1",
    )
    config = compose_checked("train", [*arguments.overrides, *ours])
    plan = replace(check_configuration(config), callbacks={})  # benchmark.py watching measures what scalars cost
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    store, _ = open_tokens(config, None)

    times: list[tuple[float, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(arguments.turns):
            seconds = fit(plan, store, Path(folder) / str(turn))
            bare = bare_loop(plan, store, n_steps)
            times.append((seconds / arguments.steps, bare))

    peaks = [peak_flops(plan.hardware) for _ in range(3)]
    sizes = plan.model(vocab_size=from_dict(store.tokenizer).n_vocab)
    with torch.device("meta"):
        flops = GPT(sizes).flops_per_token
    report(times, plan.settings.global_batch_size * sizes.context_length, flops, peaks)
    memory = peak_memory(torch.device(plan.hardware.device))
    if memory is not None:
        print(f"{'memory':10} {memory / 1e9:7.2f} GB at the peak, on {plan.hardware}")


def fit(plan: Plan, store: TokenStore, folder: Path) -> float:
    """Seconds that Lightning's Trainer takes for the steps after the warm-up."""
    fitted = build(plan, store, None)
    stopwatch = Stopwatch(plan.hardware.device)
    trainer = build_trainer(
        fitted.module.settings,
        folder,
        device=plan.hardware.device,
        precision=plan.hardware.precision,
        callbacks=[stopwatch],
        loggers=[],
    )
    trainer.fit(fitted.module, fitted.data)
    return stopwatch.seconds


def bare_loop(plan: Plan, store: TokenStore, n_steps: int) -> dict[str, float]:
    """Seconds a step of each part, and of all, in a loop of a few lines that does what the Trainer does."""
    fitted = build(plan, store, None)
    module = fitted.module
    settings = module.settings
    device = plan.hardware.device
    model = module.to(device).train()
    optimizer = module.configure_optimizers()
    strategy = SimpleNamespace(root_device=torch.device(device))
    fitted.data.trainer = SimpleNamespace(global_step=0, world_size=1, global_rank=0, strategy=strategy)
    batches = iter(fitted.data.train_dataloader())
    n_micro_steps = micro_steps(settings.global_batch_size, settings.batch_size, 1)
    autocast = torch.autocast(device, torch.bfloat16, enabled=plan.hardware.precision == "bf16")
    spent = dict.fromkeys(PARTS, 0.0)

    def spend(part: str, since: float) -> float:
        """Add the seconds since then to a part; returns the time from which the next part counts."""
        spent[part] += clock(device) - since
        return clock(device)

    for step in range(n_steps):
        if step == WARM_UP:
            spent = dict.fromkeys(PARTS, 0.0)
            start = clock(device)
        since = clock(device)
        for _ in range(n_micro_steps):
            tokens, targets = (tensor.to(device) for tensor in next(batches))
            since = spend("data", since)
            with autocast:
                loss = module.compute_loss(tokens, targets)
            since = spend("forward", since)
            (loss / n_micro_steps).backward()
            since = spend("backward", since)

        if settings.gradient_clip is None:
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        else:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
        if not (norm.isfinite() & loss.isfinite()).item():
            raise UserError(f"step {step} is not finite; measure with a lower optimizer.lr")
        set_learning_rate(optimizer, module.schedule(step, max_steps=n_steps))
        optimizer.step()
        optimizer.zero_grad()
        spend("optimizer", since)

    spent["all"] = clock(device) - start
    return {name: seconds / (n_steps - WARM_UP) for name, seconds in spent.items()}


def report(times: list[tuple[float, dict]], n_tokens: int, flops_per_token: int, peaks: list[float]) -> None:
    """Print medians: the split, speed, utilisation and the Trainer's ratio."""
    fit = statistics.median(seconds for seconds, _ in times)
    for name in PARTS:
        print(f"{name:10} {1000 * statistics.median(bare[name] for _, bare in times):7.2f} ms a step")

    framework = statistics.median(seconds - bare["all"] for seconds, bare in times)
    print(f"{'framework':10} {1000 * framework:7.2f} ms a step")
    print(f"{'Trainer':10} {1000 * fit:7.2f} ms a step in all, median of {len(times)}; {n_tokens / fit:,.0f} tokens/s")

    ratios = sorted(seconds / bare["all"] for seconds, bare in times)
    middle = statistics.median(ratios)
    print(f"{'ratio':10} {middle:7.3f} to the bare loop, from {ratios[0]:.3f} to {ratios[-1]:.3f}")

    speed = flops_per_token * n_tokens / fit
    peak = statistics.median(peaks)
    print(f"{'use':10} {speed / peak:7.1%} of {peak / 1e9:,.0f} GFLOP/s that matrix products reach")


if __name__ == "__main__":
    main()
