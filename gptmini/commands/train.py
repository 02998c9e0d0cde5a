"""Train a GPT: gptmini train [KEY=VALUE ...]; --help lists groups and keys."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from gptmini.commands.announcements import announce, announce_resume, conclude
from gptmini.commands.configuration import run_configured
from gptmini.run_folder import (
    check_run_name,
    find_run,
    link_latest,
    locked,
    new_run_folder,
    write_config,
)

CONSOLES = ("auto", "lines", "quiet")


def check(config) -> tuple:
    """Settings, hardware and builders of a configuration; everything that can be checked before the text is read.

    Raises ValueError: a value of the wrong type or out of range.
    """
    import torch
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    from gptmini.hardware import choose_hardware
    from gptmini.model import check_seed
    from gptmini.optim import schedules
    from gptmini.training.stopping import seconds_of
    from gptmini.training.trainer import quieten_lightning

    quieten_lightning()
    OmegaConf.resolve(config)
    settings = instantiate(config.trainer)
    seconds_of(settings.max_time)
    hardware = choose_hardware(settings.device, settings.precision, settings.compile, settings.devices)
    model, schedule = instantiate(config.model), instantiate(config.schedule)
    optimizer = instantiate(config.optimizer, _convert_="all")
    try:
        model(vocab_size=1)
        optimizer(torch.nn.Linear(1, 1))
        schedules.check(**schedule.keywords)
    except TypeError as error:  # of a stored configuration; what is typed was compared with the YAML
        raise ValueError(f"the configuration does not fit: {error}") from None
    check_seed(config.seed)
    check_run_name(config.name)
    if type(config.runs_dir) is not str or type(config.data_dir) is not str:
        raise ValueError(f"runs_dir and data_dir must be text, got {config.runs_dir!r} and {config.data_dir!r}")
    if config.callbacks is not None and not OmegaConf.is_dict(config.callbacks):
        raise ValueError(f"callbacks must be null or hold callbacks by name, got {config.callbacks!r}")
    for name, callback in (config.callbacks or {}).items():
        if callback is not None and not (OmegaConf.is_dict(callback) and "_target_" in callback):
            raise ValueError(f"callbacks.{name} must be null or have its own keys, got {callback!r}")
    if config.console not in CONSOLES:
        raise ValueError(f"console must be one of {', '.join(CONSOLES)}, got {config.console!r}")
    return settings, hardware, model, optimizer, schedule


def train(config) -> None:
    """Check everything, prepare the tokens, train from the first step or the one reached, and say what came of it."""
    start = time.monotonic()
    import torch
    from omegaconf import OmegaConf
    from rich.console import Console

    from gptmini.hardware import keep_freed_memory
    from gptmini.report.reading import dropping_later_events, read_overrides, read_scalars
    from gptmini.run_folder import adopt, checkpoint_to_resume
    from gptmini.tokenizer import from_dict
    from gptmini.training.monitoring.console import ConsoleLogger, LastingConsole, duration, past_validations
    from gptmini.training.monitoring.events import EventLogger
    from gptmini.training.stopping import Stopping, seconds_of
    from gptmini.training.trainer import assemble, build_trainer, is_first_process

    settings, hardware, model_config, optimizer, schedule = check(config)
    keep_freed_memory()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    first = is_first_process()  # of several processes one speaks and writes
    console = LastingConsole(
        quiet=not first or config.console == "quiet",
        force_terminal=False if config.console == "lines" else None,
        soft_wrap=True,
        highlight=False,
    )
    with ExitStack() as stack:
        path = checkpoint = None
        notes: list[str] = []
        if config.resume is not None:
            folder = find_run(config.resume)
            if first:
                stack.enter_context(locked(folder))
            path, checkpoint, notes = checkpoint_to_resume(
                folder if Path(config.resume).is_dir() else Path(config.resume).resolve()
            )
        step = checkpoint["global_step"] if checkpoint else 0
        with console.status("reading text"):
            store, written = open_tokens(config, checkpoint)
        tokenizer = from_dict(store.tokenizer)
        sizes = model_config(vocab_size=tokenizer.n_vocab)
        callbacks = make_callbacks(config, tokenizer, sizes)
        module, data = assemble(
            store,
            sizes,
            settings,
            optimizer=optimizer,
            schedule=schedule,
            seed=config.seed,
            compile=hardware.compile,
            checkpoint=checkpoint,
        )
        limit = seconds_of(settings.max_time)
        left = None if limit is None else limit - (time.monotonic() - start)
        stopping = Stopping(left, settings.max_bad_steps)
        kept = OmegaConf.merge(config, {"resume": None})
        yaml = OmegaConf.to_yaml(kept)
        overrides = [override for override in sys.argv[1:] if not override.startswith("resume=")]
        if config.resume is None:
            folder = new_run_folder(config.runs_dir, config.name, yaml) if first else Path(config.runs_dir)
            if first:
                stack.enter_context(locked(folder))
        elif first:
            overrides = read_overrides(folder) + overrides
            validated = bool(checkpoint) and checkpoint["gptmini"]["validated_step"] == step
            with dropping_later_events(folder, step if checkpoint else -1, validated=validated):
                aside = adopt(path, step) if path else []
            write_config(yaml, folder)
            link_latest(config.runs_dir, folder)
            notes += [f"{file} is of a later step, or damaged, and set aside" for file in aside]
        log_path = folder / "train.log" if first else Path(os.devnull)
        log_file = Console(file=log_path.open("a", encoding="utf-8"), soft_wrap=True, highlight=False)
        stack.callback(close, log_file.file)
        before = {} if config.resume is None or not first else read_scalars(folder)
        lines = ConsoleLogger(console, log_file, settings.max_steps, past_validations(before))

        def say(topic: str, *texts: str) -> None:
            for word, text in zip((topic, *[""] * len(texts)), texts, strict=False):
                lines.say(f"{word:8} {text}")

        purge_step = None if config.resume is None else step + (step > 0)
        events = EventLogger(
            str(folder), purge_step=purge_step, on_error=lambda error: say("events", f"not written: {error.strerror}")
        )
        if first:
            describe(events, kept, store, module, overrides)
            for note in notes:
                say("warning", note)
            announce(say, store, written, module, hardware, folder, config.runs_dir)
            if config.resume is not None:
                announce_resume(say, path, checkpoint, module)
        trainer = build_trainer(
            settings,
            folder,
            device=hardware.device,
            precision=hardware.precision,
            callbacks=[*callbacks, stopping],
            loggers=[events, lines],
            checkpoint=checkpoint,
        )
        fit(trainer, module, data, stopping, say, folder)
        say("done", f"{trainer.global_step - step} steps in {duration(time.monotonic() - start)}")
        conclude(say, lines, callbacks, module, folder)


def close(file) -> None:
    """Close a file, whatever it could not write: that was said when it failed."""
    with suppress(OSError):
        file.close()


def open_tokens(config, checkpoint: dict | None) -> tuple:
    """The tokens that a run began with, if they are still there; else prepared from the text. And whether they were."""
    from hydra.utils import instantiate

    from gptmini.data.store import TokenStore, prepare

    before = checkpoint and Path(checkpoint["gptmini"]["data"]["folder"])
    if before and (before / "meta.json").is_file():
        return TokenStore(before), False
    return prepare(instantiate(config.data), instantiate(config.tokenizer, _convert_="all"), config.data_dir)


def fit(trainer, module, data, stopping, say: Callable, folder: Path) -> None:
    """Train; if the run is stopped, say how it goes on and leave with the code of the reason."""
    from gptmini.training.checkpointing import Stop

    last = folder / "checkpoints" / "last.ckpt"
    try:
        with stopping.listening():
            trainer.fit(module, data)
        return
    except Stop as stop:
        code, reason = stop.code, stop.reason
        kept = f"saved as {last}" if last.exists() else "not saved, for want of callbacks.checkpoints"
    except (SystemExit, KeyboardInterrupt):  # Lightning leaves so on a second Ctrl-C, or a signal before it listens
        code, reason = 128 + stopping.signal, "a signal, at once,"
        kept = f"{last} is the newest checkpoint" if last.exists() else "nothing was saved yet"
    say("stopped", f"by {reason} at step {trainer.global_step}; {kept}")
    say("next", f"python scripts/train.py resume={folder}")
    sys.exit(code)


def main() -> None:
    """Train for the overrides on the command line."""
    run_configured("train", train, check)


def make_callbacks(config, tokenizer, sizes) -> list:
    """The callbacks that a configuration names; those that wait for the tokenizer are given it.

    Raises ValueError: keys of a stored configuration that do not fit, or pictures of what the model has not.
    """
    from functools import partial

    from hydra.utils import instantiate

    from gptmini.training.monitoring.pictures import Pictures

    try:
        callbacks = [
            callback(tokenizer=tokenizer) if isinstance(callback, partial) else callback
            for callback in (instantiate(config.callbacks, _convert_="all") or {}).values()
            if callback is not None
        ]
    except TypeError as error:  # of a stored configuration; what is typed was compared with the YAML
        raise ValueError(f"callbacks does not fit: {error}") from None
    for callback in callbacks:
        if isinstance(callback, Pictures):
            callback.check(sizes)
    return callbacks


def describe(events, config, store, module, overrides: list[str]) -> None:
    """Write down for TensorBoard what the run is, and how it compares with others: by what overrides changed."""
    from omegaconf import OmegaConf

    from gptmini.report.tables import comparison, config_table, data_card, model_table

    plain = OmegaConf.to_container(config, resolve=True)
    events.log_layout()
    events.log_table("setup/config", config_table(plain), 0)
    events.log_table("setup/model", model_table(module.model), 0)
    events.log_table("setup/data", data_card(store), 0)
    events.log_comparison(*comparison(plain, store, module.model, overrides))
    events.save()
