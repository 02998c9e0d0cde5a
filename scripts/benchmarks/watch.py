"""What watching costs: the share of a run that its scalars, samples and pictures take, and a run without them.

Runs with and without take turns. The shares are measured inside the first, hook by hook, with the events that each hook
writes; on a GPU every hook waits until the device has done what it was asked, so that none pays for another's work.
"""

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import lightning as L
import torch
from benchmarks.train import now
from hydra.utils import instantiate

from gptmini.commands.configuration import compose_checked
from gptmini.commands.errors import Parser
from gptmini.commands.train import describe, make_callbacks
from gptmini.data.store import prepare
from gptmini.hardware import choose_hardware, keep_freed_memory
from gptmini.tokenizer import from_dict
from gptmini.training.checkpointing import RunCheckpoints
from gptmini.training.monitoring.events import EventLogger
from gptmini.training.monitoring.scalars import Scalars
from gptmini.training.trainer import assemble, build_trainer, quieten_lightning


def timed(method: Callable, spent: list[float]) -> Callable:
    """The method, which adds the seconds of each call to spent."""

    def call(*arguments: object) -> object:
        start = now()
        result = method(*arguments)
        spent.append(now() - start)
        return result

    return call


def fit(config, folder: Path, *, watched: bool) -> tuple[float, float, float]:
    """Seconds of a whole run, of its scalars, and of its text and pictures."""
    settings = instantiate(config.trainer)
    hardware = choose_hardware(settings.device, settings.precision, settings.compile)
    store, _ = prepare(instantiate(config.data), instantiate(config.tokenizer, _convert_="all"), config.data_dir)
    tokenizer = from_dict(store.tokenizer)
    sizes = instantiate(config.model)(vocab_size=tokenizer.n_vocab)
    parts = {"optimizer": instantiate(config.optimizer, _convert_="all"), "schedule": instantiate(config.schedule)}
    callbacks, scalars, others = [], [], []
    for callback in make_callbacks(config, tokenizer, sizes):
        if isinstance(callback, RunCheckpoints):
            callbacks.append(callback)
        elif watched:
            spent = scalars if isinstance(callback, Scalars) else others
            for name in vars(L.Callback):
                if name.startswith("on_") and getattr(type(callback), name) is not getattr(L.Callback, name):
                    setattr(callback, name, timed(getattr(callback, name), spent))
            callbacks.append(callback)
    start = now()
    module, data = assemble(store, sizes, settings, seed=config.seed, compile=hardware.compile, **parts)
    events = EventLogger(str(folder))
    how = {"device": hardware.device, "precision": hardware.precision, "callbacks": callbacks, "loggers": [events]}
    if watched:
        began = now()
        describe(events, config, store, module, [])
        others.append(now() - began)
    build_trainer(settings, folder, **how).fit(module, data)
    return now() - start, sum(scalars), sum(others)


def main() -> None:
    """Alternate, and print each turn and the medians."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="as for train.py (default: the default run)")
    parser.add_argument("--turns", type=int, default=3, help="of each, one after the other (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    arguments = parser.parse_args()
    if min(arguments.turns, arguments.threads) < 1:
        parser.error("--turns and --threads must be at least 1")
    quieten_lightning()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    config = compose_checked("train", [*arguments.overrides, "trainer.devices=1"])
    shares, ratios = [], []
    for turn in range(arguments.turns):
        with tempfile.TemporaryDirectory() as folder:
            order = (True, False) if turn % 2 == 0 else (False, True)  # whoever comes second finds another machine
            taken = {watched: fit(config, Path(folder) / str(watched), watched=watched) for watched in order}
        (whole, scalars, others), (without, _, _) = taken[True], taken[False]
        shares.append((scalars / whole, others / whole))
        ratios.append(whole / without)
        print(
            f"turn {turn + 1}: {whole:.2f} s, of it scalars {scalars:.3f} s, text and pictures {others:.3f} s; "
            f"without them {without:.2f} s",
            flush=True,
        )
    for name, values in zip(("scalars", "text and pictures"), zip(*shares, strict=True), strict=True):
        print(f"{name:18} {statistics.median(values):.2%} of the run")
    print(f"{'with to without':18} {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
