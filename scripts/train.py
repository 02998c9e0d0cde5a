"""Train a GPT: python scripts/train.py [KEY=VALUE ...]; --help lists groups and keys."""

import os
import sys
import time
from functools import partial
from pathlib import Path

from command_line import INTERRUPTED, quieten_lightning, run_configured


def train(config) -> None:
    """Check everything, prepare the tokens, train, and say what came of it."""
    start = time.monotonic()
    import torch
    from hydra.utils import instantiate
    from lightning.pytorch.utilities import rank_zero_only
    from omegaconf import OmegaConf
    from rich.console import Console

    from gptmini.data.store import prepare
    from gptmini.model import new_gpt
    from gptmini.optim import schedules
    from gptmini.tokenizer import from_dict
    from gptmini.training.callbacks import Samples
    from gptmini.training.checkpointing import RunCheckpoints
    from gptmini.training.datamodule import TokenDataModule
    from gptmini.training.hardware import choose_hardware
    from gptmini.training.loggers import ConsoleLogger, EventLogger, duration
    from gptmini.training.module import GPTModule
    from gptmini.training.run import build_trainer, check_run_name, new_run_folder

    quieten_lightning()
    OmegaConf.resolve(config)
    settings = instantiate(config.trainer)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    hardware = choose_hardware(settings.device, settings.precision, settings.compile)
    model_config = instantiate(config.model)
    model_config(vocab_size=1)  # every other size is checked before the text is read
    schedule = instantiate(config.schedule)
    schedules.check(**schedule.keywords)
    check_run_name(config.name)

    first = rank_zero_only.rank == 0  # of several processes one speaks and writes
    console = Console(quiet=not first, soft_wrap=True, highlight=False)
    with console.status("reading text"):
        store, written = prepare(instantiate(config.data), instantiate(config.tokenizer), config.data_dir)
    tokenizer = from_dict(store.tokenizer)
    callbacks = [
        callback(tokenizer=tokenizer) if isinstance(callback, partial) else callback
        for callback in instantiate(config.callbacks).values()
    ]
    model = new_gpt(model_config(vocab_size=tokenizer.n_vocab), config.seed)
    module = GPTModule(
        model,
        tokenizer,
        optimizer=instantiate(config.optimizer, _convert_="all"),
        schedule=partial(schedule, max_steps=settings.max_steps),
        max_steps=settings.max_steps,
        gradient_clip=settings.gradient_clip,
        seed=config.seed,
        tokens_per_byte=store.n_tokens("val") / store.n_bytes("val"),
        data={"folder": str(store.folder), "fingerprint": store.fingerprint},
        compile=hardware.compile,
    )
    data = TokenDataModule(
        store,
        context_length=model.config.context_length,
        global_batch_size=settings.global_batch_size,
        batch_size=settings.batch_size,
        val_tokens=settings.val_tokens,
        seed=config.seed,
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
        n_train, n_val = store.n_tokens("train"), store.n_tokens("val")
        say(
            "data",
            f"{store.folder}, {'prepared now' if written else 'prepared before'}",
            f"{n_train:,} tokens to train on, {n_val:,} held out; {store.n_bytes('train') / n_train:.2f} bytes a token",
        )
        say("model", f"{model.n_parameters:,} parameters, {model.flops_per_token / 1e6:.1f} MFLOP a token")
        say("machine", str(hardware))
        say("run", str(folder), f"watch it: tensorboard --logdir {config.runs_dir}")
        loggers = [events, ConsoleLogger(console, log_file, settings.max_steps)]
        trainer = build_trainer(settings, hardware, folder, callbacks=callbacks, loggers=loggers)
        try:
            trainer.fit(module, data)
        except SystemExit:  # Lightning's answer to Ctrl-C
            say("stopped", f"at step {trainer.global_step}; what was saved is in {folder}/checkpoints")
            sys.exit(INTERRUPTED)
        say("done", f"{trainer.global_step} steps in {duration(time.monotonic() - start)}")
        for callback in callbacks:
            if isinstance(callback, RunCheckpoints):
                best = callback.best
                say(
                    "best",
                    f"val loss {best['loss']:.4f}, {best['bits_per_byte']:.4f} bits per byte, step {best['step']}",
                )
            if isinstance(callback, Samples):
                say("sample", *callback.text.splitlines())
        say("next", f"python scripts/sample.py {folder}", f"python scripts/evaluate.py {folder}")


if __name__ == "__main__":
    run_configured("train", train)
