"""Train a GPT: python scripts/train.py [KEY=VALUE ...]; --help lists groups and keys."""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from command_line import INTERRUPTED, quieten_lightning, run_configured


def check(config) -> tuple:
    """Settings, hardware and builders of a configuration; everything that can be checked before the text is read.

    Raises:
        ValueError: a value of the wrong type or out of range.
    """
    import torch
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    from gptmini.model import check_seed
    from gptmini.optim import schedules
    from gptmini.training.hardware import choose_hardware
    from gptmini.training.run import check_run_name

    quieten_lightning()
    OmegaConf.resolve(config)
    settings = instantiate(config.trainer)
    hardware = choose_hardware(settings.device, settings.precision, settings.compile, settings.devices)
    model, schedule = instantiate(config.model), instantiate(config.schedule)
    optimizer = instantiate(config.optimizer, _convert_="all")
    model(vocab_size=1)
    optimizer(torch.nn.Linear(1, 1))
    schedules.check(**schedule.keywords)
    check_seed(config.seed)
    check_run_name(config.name)
    if type(config.runs_dir) is not str or type(config.data_dir) is not str:
        raise ValueError(f"runs_dir and data_dir must be text, got {config.runs_dir!r} and {config.data_dir!r}")
    return settings, hardware, model, optimizer, schedule


def train(config) -> None:
    """Check everything, prepare the tokens, train, and say what came of it."""
    start = time.monotonic()
    import torch
    from hydra.utils import instantiate
    from lightning.pytorch.utilities import rank_zero_only
    from omegaconf import OmegaConf
    from rich.console import Console

    from gptmini.data.store import prepare
    from gptmini.tokenizer import from_dict
    from gptmini.training.loggers import ConsoleLogger, EventLogger, LastingConsole, duration
    from gptmini.training.run import assemble, build_trainer, new_run_folder

    settings, hardware, model_config, optimizer, schedule = check(config)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    first = rank_zero_only.rank == 0  # of several processes one speaks and writes
    console = LastingConsole(quiet=not first, soft_wrap=True, highlight=False)
    with console.status("reading text"):
        store, written = prepare(
            instantiate(config.data), instantiate(config.tokenizer, _convert_="all"), config.data_dir
        )
    tokenizer = from_dict(store.tokenizer)
    callbacks = [
        callback(tokenizer=tokenizer) if isinstance(callback, partial) else callback
        for callback in (instantiate(config.callbacks) or {}).values()
        if callback is not None
    ]
    gpt_config = model_config(vocab_size=tokenizer.n_vocab)
    module, data = assemble(
        store,
        gpt_config,
        settings,
        optimizer=optimizer,
        schedule=schedule,
        seed=config.seed,
        compile=hardware.compile,
    )

    folder = new_run_folder(config.runs_dir, config.name) if first else Path(config.runs_dir)
    log_path = folder / "train.log" if first else Path(os.devnull)
    with log_path.open("w", encoding="utf-8") as log_stream:
        log_file = Console(file=log_stream, soft_wrap=True, highlight=False)

        def say(topic: str, *lines: str) -> None:
            for target in (console, log_file):
                for word, line in zip((topic, *[""] * len(lines)), lines, strict=False):
                    target.print(f"{word:8} {line}", markup=False)

        events = EventLogger(str(folder))
        if first:
            yaml = OmegaConf.to_yaml(config)
            (folder / "config.yaml").write_text(yaml, encoding="utf-8")
            events.log_text("config", yaml, 0)
        announce(say, store, written, module.model, hardware, folder, config.runs_dir)
        loggers = [events, ConsoleLogger(console, log_file, settings.max_steps)]
        trainer = build_trainer(settings, hardware, folder, callbacks=callbacks, loggers=loggers)
        try:
            trainer.fit(module, data)
        except SystemExit:  # Lightning's answer to Ctrl-C and SIGTERM
            last = folder / "checkpoints" / "last.ckpt"
            kept = f"{last} is the newest checkpoint" if last.exists() else "nothing was saved yet"
            say("stopped", f"at step {trainer.global_step}; {kept}")
            sys.exit(INTERRUPTED)
        say("done", f"{trainer.global_step} steps in {duration(time.monotonic() - start)}")
        conclude(say, callbacks, folder)


def announce(say: Callable, store, written: bool, model, hardware, folder: Path, runs_dir: str) -> None:
    """Say what is trained, on what, and where it can be watched."""
    n_train, n_val = store.n_tokens("train"), store.n_tokens("val")
    say(
        "data",
        f"{store.folder}, {'prepared now' if written else 'prepared before'}",
        f"{n_train:,} tokens to train on, {n_val:,} held out; {1 / store.tokens_per_byte('train'):.2f} bytes a token",
    )
    say("model", f"{model.n_parameters:,} parameters, {model.flops_per_token / 1e6:.1f} MFLOP a token")
    say("machine", str(hardware))
    say("run", str(folder), f"watch it: tensorboard --logdir {runs_dir}")


def conclude(say: Callable, callbacks: list, folder: Path) -> None:
    """Say how good it became, show a sample, and name the commands that come next."""
    from gptmini.training.callbacks import Samples
    from gptmini.training.checkpointing import RunCheckpoints

    for callback in callbacks:
        if isinstance(callback, RunCheckpoints) and callback.best is None:
            say("best", "none: no validation loss was finite; the run has diverged, try a lower optimizer.lr")
        elif isinstance(callback, RunCheckpoints):
            best = callback.best
            say("best", f"val loss {best['loss']:.4f}, {best['bits_per_byte']:.4f} bits per byte, step {best['step']}")
        if isinstance(callback, Samples):
            say("sample", *(callback.text.splitlines() or [""]))
    say("next", f"python scripts/sample.py {folder}", f"python scripts/evaluate.py {folder}")


if __name__ == "__main__":
    run_configured("train", train, check)
