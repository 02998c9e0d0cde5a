"""What a training step costs, and what Lightning's Trainer adds: a fit and a bare loop over the same batches, in turns.

Prints tokens a second, the step split into data, forward, backward, optimizer and framework, the share of this
machine's matrix products that training reaches, and peak memory. The bare loop waits for the device after each part, as
the fit does not: on a GPU, which works ahead, the split says where time goes, and the ratio is too low.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import lightning as L
import torch
from hydra.utils import instantiate

from gptmini.commands.configuration import compose_checked
from gptmini.commands.errors import Parser
from gptmini.data.store import prepare
from gptmini.hardware import Hardware, choose_hardware, keep_freed_memory
from gptmini.model import GPT
from gptmini.optim import set_learning_rate
from gptmini.tokenizer import from_dict
from gptmini.training.datamodule import TokenDataModule
from gptmini.training.module import GPTModule
from gptmini.training.monitoring.measures import PARTS, peak_memory
from gptmini.training.settings import micro_steps
from gptmini.training.trainer import assemble, build_trainer, quieten_lightning

WARM_UP = 10  # steps at the start of each turn that are not counted
MATRIX = {"cpu": 2048, "cuda": 8192, "mps": 4096}  # rows and columns of the products that give the peak


class Clock(L.Callback):
    """Time from the end of the warm-up to the end of the last step."""

    start: float | None = None

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Read the clock at the two steps that matter."""
        if trainer.global_step == WARM_UP and self.start is None:  # its later calls are micro-steps of the next step
            self.start = now()
        elif trainer.global_step == trainer.max_steps:
            self.seconds = now() - self.start


def now() -> float:
    """Seconds, once the device has done what it was asked."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
    return time.perf_counter()


def peak_flops(hardware: Hardware) -> float:
    """Operations a second of the best of several square matrix products, in the precision of training."""
    dtype = torch.bfloat16 if hardware.precision == "bf16" else torch.float32
    n = MATRIX[hardware.device]
    a, b = (torch.randn(n, n, device=hardware.device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(10):
        start = now()
        a @ b
        times.append(now() - start)
    return 2 * n**3 / min(times)


def main() -> None:
    """Alternate fit and bare loop, and print what each step took."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "overrides", nargs="*", help="as for train.py, as in experiment=nanogpt_cpu data.path=input.txt"
    )
    parser.add_argument("--turns", type=int, default=7, help="of each, one after the other (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=150, help="counted in each turn (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    arguments = parser.parse_args()
    if min(arguments.turns, arguments.steps, arguments.threads) < 1:
        parser.error("--turns, --steps and --threads must be at least 1")
    quieten_lightning()
    keep_freed_memory()
    n_steps = WARM_UP + arguments.steps
    overrides = [*arguments.overrides, f"trainer.max_steps={n_steps}", f"trainer.val_every_steps={n_steps}"]
    config = compose_checked("train", [*overrides, "trainer.val_tokens=1", "trainer.devices=1"])
    torch.set_num_threads(arguments.threads)
    settings = instantiate(config.trainer)
    hardware = choose_hardware(settings.device, settings.precision, settings.compile)
    store, _ = prepare(instantiate(config.data), instantiate(config.tokenizer), config.data_dir)
    model_config = instantiate(config.model)(vocab_size=from_dict(store.tokenizer).n_vocab)
    parts = {"optimizer": instantiate(config.optimizer, _convert_="all"), "schedule": instantiate(config.schedule)}
    parts |= {"seed": config.seed, "compile": hardware.compile}

    def fit(folder: Path) -> float:
        module, data = assemble(store, model_config, settings, **parts)
        clock = Clock()  # alone: benchmark.py watch measures what scalars cost
        trainer = build_trainer(
            settings,
            folder,
            device=hardware.device,
            precision=hardware.precision,
            callbacks=[clock],
            loggers=[],
        )
        trainer.fit(module, data)
        return clock.seconds / arguments.steps

    times: list[tuple[float, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(arguments.turns):
            seconds = fit(Path(folder) / str(turn))
            times.append((seconds, bare_loop(*assemble(store, model_config, settings, **parts), hardware, n_steps)))
    peaks = [peak_flops(hardware) for _ in range(3)]
    with torch.device("meta"):
        flops = GPT(model_config).flops_per_token
    report(times, settings.global_batch_size * model_config.context_length, flops, peaks)
    if (memory := peak_memory(torch.device(hardware.device))) is not None:
        print(f"{'memory':10} {memory / 1e9:7.2f} GB at the peak, on {hardware}")


def bare_loop(module: GPTModule, data: TokenDataModule, hardware: Hardware, n_steps: int) -> dict[str, float]:
    """Seconds a step of each part, and of all, in a loop of a few lines that does what the Trainer does."""
    model, settings = module.to(hardware.device).train(), module.settings
    optimizer = module.configure_optimizers()
    data.trainer = argparse.Namespace(global_step=0, world_size=1, global_rank=0)
    batches = iter(data.train_dataloader())
    n_micro_steps = micro_steps(settings.global_batch_size, settings.batch_size, 1)
    autocast = torch.autocast(hardware.device, torch.bfloat16, enabled=hardware.precision == "bf16")
    spent = dict.fromkeys(PARTS, 0.0)

    def spend(part: str, since: float) -> float:
        spent[part] += now() - since
        return now()

    for step in range(n_steps):
        if step == WARM_UP:
            spent = dict.fromkeys(PARTS, 0.0)
            start = now()
        clock = now()
        for _ in range(n_micro_steps):
            tokens, targets = (tensor.to(hardware.device) for tensor in next(batches))
            clock = spend("data", clock)
            with autocast:
                loss = module.compute_loss(tokens, targets)
            clock = spend("forward", clock)
            (loss / n_micro_steps).backward()
            clock = spend("backward", clock)
        if settings.gradient_clip is None:
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        else:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
        if not (norm.isfinite() & loss.isfinite()).item():
            raise ValueError(f"step {step} is not finite; measure with a lower optimizer.lr")
        set_learning_rate(optimizer, module.schedule(step, max_steps=n_steps))
        optimizer.step()
        optimizer.zero_grad()
        spend("optimizer", clock)
    return {name: seconds / (n_steps - WARM_UP) for name, seconds in (spent | {"all": now() - start}).items()}


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
    speed, peak = flops_per_token * n_tokens / fit, statistics.median(peaks)
    print(f"{'use':10} {speed / peak:7.1%} of {peak / 1e9:,.0f} GFLOP/s that matrix products reach")


if __name__ == "__main__":
    main()
