"""Estimate a new run for gptmini train --dry-run: its size, its passes over the text, its memory and its time."""

import math

import torch

from gptmini.configuration.messages import advising_on_memory
from gptmini.configuration.request import UserRequest
from gptmini.console.numbers import duration, with_prefix
from gptmini.console.progress import Progress
from gptmini.console.terminal import Screen, make_console, show_progress
from gptmini.job.announcer import Announcer
from gptmini.job.callbacks import build_callbacks
from gptmini.job.train import open_run_tokens, prepare_process
from gptmini.model import meta_gpt
from gptmini.runs import open_run
from gptmini.system import hardware
from gptmini.system.errors import UserError
from gptmini.system.process import restore_gc_and_sigint
from gptmini.training import (
    SECONDS_AROUND,
    ConsoleLogger,
    GPTModule,
    Settings,
    assemble,
    hardware_of,
    measure_module,
    seconds_of_validation,
)

SECONDS = 3.0  # how long to measure steps
# A float32 weight, its gradient, and one moment, such as Muon's. AdamW stores two moments. Frozen weights have neither.
BYTES_PER_PARAMETER = 12
BYTES_PER_FROZEN_PARAMETER = 4


@advising_on_memory("lower trainer.batch_size or the model's sizes")
def dry_run(settings: Settings, request: UserRequest) -> None:
    """Print what a new run would train, and how much memory and time it would need. Only its text is prepared.

    Raises UserError if the memory is too small, and the same errors as job.train.train.
    """
    root = settings.root
    callbacks = build_callbacks(settings)
    restore_gc_and_sigint()
    prepare_process(settings)

    # Raise the errors of a run whose folder cannot be used. A new folder is removed at the end of the block.
    with open_run(None, root.folder, runs_dir=root.runs_dir, name=root.name):
        pass

    console = make_console(settings.root.console)
    with show_progress(console, topic="data") as watcher:
        settings, store, prepared_now, chosen = open_run_tokens(settings, request, None, watcher)
        logger = ConsoleLogger(Screen(console), settings.trainer)
        announcer = Announcer(logger, request, loggers=())
        announcer.print_topic("auto" if root.budget is None else "budget", *chosen)
        model = meta_gpt(settings.model.with_vocab_size(store.tokenizer.n_vocab))
        announcer.print_sizes(store, model, settings.trainer, prepared_now=prepared_now)
        n_bytes = BYTES_PER_FROZEN_PARAMETER if root.frozen_prefixes else BYTES_PER_PARAMETER
        needed = n_bytes * model.n_parameters
        device = torch.device(hardware_of(settings).device)
        size = hardware.memory(device)
        if size is not None and needed > size:
            raise UserError(
                f"the model requires at least {with_prefix(needed, 'B')} of memory, but this device has "
                f"{with_prefix(size, 'B')}; use a smaller model"
            )
        module, _ = assemble(settings, store, callbacks=callbacks)
        watcher.on_progress(Progress(phase="measuring steps"))
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds_a_step, _ = measure_module(module, seconds=SECONDS)

    announcer.print_setup(module, settings, is_new=True)
    reasons = [
        f"trainer.{name}={str(getattr(module.hardware, name)).lower()}: {reason}"
        for name, reason in module.hardware.reasons.items()
    ]
    announcer.print_topic("reasons", *reasons)
    left_out = "without samples, pictures and TensorBoard"
    announcer.print_topic("memory", memory_line(device), left_out)
    n_steps = module.settings.max_steps
    per_step = module.tokens_per_step
    announcer.print_topic(
        "steps", f"{n_steps:,} steps of {per_step:,} tokens: {n_steps * per_step:,} tokens"
    )
    speed = f"{seconds_a_step:.2g} s per step, {per_step / seconds_a_step:,.0f} tokens per second"
    announcer.print_topic("speed", speed)
    n_ranks = module.settings.n_ranks
    if n_ranks > 1:
        announcer.print_topic(
            "", f"measured on one device; {n_ranks} devices also exchange gradients"
        )
    announcer.print_topic("time", *time_lines(module, seconds_a_step))
    announcer.print_topic("next", "to train, run the same command without --dry-run")


def memory_line(device: torch.device) -> str:
    """Return a line with the peak memory so far, and the memory of the GPU or of the machine."""
    peak = hardware.peak_memory(device)
    size = hardware.memory(device)
    owner = torch.cuda.get_device_name(device) if device.type == "cuda" else "this machine"
    shown_peak = "unknown" if peak is None else with_prefix(peak, "B")
    shown_size = "" if size is None else f" of the {with_prefix(size, 'B')} of {owner}"
    return shown_peak + shown_size


def time_lines(module: GPTModule, seconds_a_step: float) -> list[str]:
    """Return lines with the time of the entire run, and the step at which trainer.max_time ends it."""
    settings = module.settings
    n_steps = settings.max_steps
    of_validation = seconds_of_validation(seconds_a_step, module)
    n_validations = math.ceil(n_steps / settings.validation_interval)
    if module.origin is not None:
        n_validations += 1  # a run with trained weights starts with a validation
    work = n_steps * seconds_a_step + n_validations * of_validation
    noun = "validation" if n_validations == 1 else "validations"
    lines = [f"about {duration(work + SECONDS_AROUND)} with {n_validations:,} {noun}"]

    limit = settings.max_seconds
    if limit is not None and limit < work + SECONDS_AROUND:
        # The run ends with a validation.
        step = int(n_steps * max(0.0, limit - SECONDS_AROUND - of_validation) / work)
        lines.append(f"trainer.max_time={settings.max_time} ends the run at about step {step:,}")
    return lines
