"""What Lightning's Trainer costs a step: the same model and batches in a fit and in a bare loop, in turns.

Prints the median time of a step of each, and the median of the ratios pair by pair.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import lightning as L
import torch
from command_line import Parser, compose_checked, quieten_lightning
from hardware import choose_hardware
from hydra.utils import instantiate

from gptmini.data.store import prepare
from gptmini.model import next_token_loss
from gptmini.optim import set_learning_rate
from gptmini.tokenizer import from_dict
from gptmini.training.callbacks import Scalars
from gptmini.training.datamodule import TokenDataModule
from gptmini.training.loggers import EventLogger
from gptmini.training.module import GPTModule
from gptmini.training.run import assemble, build_trainer

WARM_UP = 10  # steps at the start of each turn that are not counted


class Clock(L.Callback):
    """Time from the end of the warm-up to the end of the last step."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Read the clock at the two steps that matter."""
        if trainer.global_step == WARM_UP:
            self.start = time.perf_counter()
        elif trainer.global_step == trainer.max_steps:
            self.seconds = time.perf_counter() - self.start


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
    n_steps = WARM_UP + arguments.steps
    overrides = [*arguments.overrides, f"trainer.max_steps={n_steps}", f"trainer.val_every_steps={n_steps}"]
    config = compose_checked("train", [*overrides, "trainer.val_tokens=1", "trainer.device=cpu", "trainer.devices=1"])
    torch.set_num_threads(arguments.threads)
    settings = instantiate(config.trainer)
    hardware = choose_hardware(settings.device, settings.precision, settings.compile)
    store, _ = prepare(instantiate(config.data), instantiate(config.tokenizer), config.data_dir)
    n_vocab = from_dict(store.tokenizer).n_vocab
    optimizer, schedule = instantiate(config.optimizer, _convert_="all"), instantiate(config.schedule)

    def fresh() -> tuple[GPTModule, TokenDataModule]:
        config_now = instantiate(config.model)(vocab_size=n_vocab)
        return assemble(
            store,
            config_now,
            settings,
            optimizer=optimizer,
            schedule=schedule,
            seed=config.seed,
            compile=hardware.compile,
        )

    def fit(folder: Path) -> float:
        module, data = fresh()
        clock, scalars = Clock(), Scalars(config.callbacks.scalars.every_steps)
        trainer = build_trainer(
            settings,
            folder,
            device="cpu",
            precision=hardware.precision,
            callbacks=[scalars, clock],
            loggers=[EventLogger(str(folder))],
        )
        trainer.fit(module, data)
        return clock.seconds / arguments.steps

    def bare() -> float:
        module, data = fresh()
        model, steps = module.model.train(), module.configure_optimizers()
        data.trainer = argparse.Namespace(global_step=0, world_size=1, global_rank=0)
        for step, (tokens, targets) in zip(range(n_steps), data.train_dataloader(), strict=False):
            if step == WARM_UP:
                start = time.perf_counter()
            loss = next_token_loss(model(tokens), targets)
            steps.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip or torch.inf)
            set_learning_rate(steps, module.schedule(step, max_steps=n_steps))
            steps.step()
        return (time.perf_counter() - start) / arguments.steps

    times = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(arguments.turns):
            times.append((fit(Path(folder) / str(turn)), bare()))
    for name, column in zip(("Trainer", "bare loop"), zip(*times, strict=True), strict=True):
        print(f"{name:10} {1000 * statistics.median(column):7.2f} ms a step, median of {arguments.turns}")
    ratios = sorted(a / b for a, b in times)
    print(f"ratio      {statistics.median(ratios):.4f}, from {ratios[0]:.4f} to {ratios[-1]:.4f}")


if __name__ == "__main__":
    main()
