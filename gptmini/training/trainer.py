"""Lightning's Trainer and what it fits, put together and checked."""

import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from gptmini.checks import UserError
from gptmini.data.store import TokenStore
from gptmini.model import GPT, GPTConfig, new_gpt
from gptmini.model.checkpoint import TrainingState
from gptmini.training.batch_size import choose_batch_size
from gptmini.training.checkpointing import AtomicCheckpointIO, RunCheckpoints
from gptmini.training.datamodule import TokenDataModule
from gptmini.training.module import GPTModule
from gptmini.training.settings import TrainerSettings, micro_steps

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "bf16_stream": "bf16-mixed"}  # our name to Lightning's
PLAIN = (str, int, float, bool, type(None), torch.Tensor)  # what a checkpoint may hold, besides dicts and lists of it


def assemble(
    store: TokenStore,
    config: GPTConfig,
    settings: TrainerSettings,
    *,
    optimizer: Callable[[GPT], torch.optim.Optimizer],
    schedule: Callable[..., float],
    seed: int,
    compile: bool,
    device: str = "cpu",
    precision: str = "fp32",
    state: TrainingState | None = None,
) -> tuple[GPTModule, TokenDataModule]:
    """Put together what a Trainer fits: a model on the store's tokens, and their batches.

    The seed is that of first weights, batches and dropout; the model is new, or that of the state, to go on with.
    optimizer, schedule, compile and precision are as for GPTModule. Where settings.batch_size is auto, it is chosen for
    the device, and module.settings has the number.

    Raises UserError: a seed or an optimizer setting out of range, a split too short for its windows, or a state of
    another model, other tokens or later steps than these.
    """
    if state is not None:
        _check_state(state, store, config, settings)

    model = new_gpt(config, seed) if state is None else state.model
    if settings.batch_size == "auto":
        batch_size = choose_batch_size(
            model,
            global_batch_size=settings.global_batch_size,
            devices=settings.devices,
            device=device,
            precision=precision,
            compile=compile,
        )
        settings = replace(settings, batch_size=batch_size)

    module = GPTModule(
        model,
        store,
        settings,
        optimizer=optimizer,
        schedule=schedule,
        seed=seed,
        compile=compile,
        precision=precision,
        state=state,
    )
    data = TokenDataModule(store, settings, context_length=config.context_length, seed=seed)
    return module, data


def build_trainer(
    settings: TrainerSettings,
    folder: Path,
    *,
    device: str,
    precision: str,
    callbacks: Sequence[Callback],
    loggers: Sequence[Logger],
    state: TrainingState | None = None,
) -> Trainer:
    """Lightning's Trainer on cpu, cuda or mps, in steps of the optimizer; bar, checkpoints and data order are ours.

    settings are those of the module, whose batch_size is a number.

    With a state that assemble accepted it begins at that step. Of its own state Lightning needs two counters,
    which follow from the step; so its loops are not restored, and devices and batch_size may differ from before.

    Each callback is as it is to begin: restore_callbacks gives it what it kept.
    """
    n_micro_steps = micro_steps(settings.global_batch_size, settings.batch_size, settings.devices)
    step = 0 if state is None else state.step
    # Was the run stopped between a step and its validation? Lightning calls one before the first step a sanity check.
    validate_first = state is not None and step and settings.validation_due(step) and state.validated_step != step

    trainer = Trainer(
        accelerator="gpu" if device == "cuda" else device,
        devices=settings.devices,
        precision=PRECISIONS[precision],
        max_steps=settings.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=n_micro_steps,
        val_check_interval=settings.val_every_steps * n_micro_steps,  # Lightning counts micro-steps here
        check_val_every_n_epoch=None,
        num_sanity_val_steps=-1 if validate_first else 0,
        logger=list(loggers),
        callbacks=sorted(callbacks, key=lambda callback: isinstance(callback, RunCheckpoints)),  # logs are kept first
        plugins=[AtomicCheckpointIO()],
        default_root_dir=folder,
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        use_distributed_sampler=False,
    )
    # Between several ranks Lightning would pass on a SIGTERM, and wait for it, in every micro-step; Stopping does that.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    trainer.fit_loop.epoch_loop.batch_progress.total.ready = step * n_micro_steps
    trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
    return trainer


def check_state_is_plain(callback: Callback) -> None:
    """Raise UserError unless a callback's state holds only tensors and plain values, as a checkpoint may.

    Reading a checkpoint runs no code, so one that held anything else could not be read again.
    """
    _check_plain(callback.state_dict(), type(callback).__name__)


def is_first_process() -> bool:
    """Whether this is the one process of a run that speaks and writes."""
    return rank_zero_only.rank == 0


def quieten_lightning() -> None:
    """Silence hints at other products, and a deprecation between Lightning and torch that no setting avoids.

    TensorBoard's writing thread prints a traceback where the main thread raises the same error; that too is silenced.
    """
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec.*")
    threading.excepthook = lambda hint: None if issubclass(hint.exc_type, OSError) else threading.__excepthook__(hint)


def _check_state(state: TrainingState, store: TokenStore, config: GPTConfig, settings: TrainerSettings) -> None:
    """Raise UserError unless a run of these sizes, on these tokens, can go on from the state."""
    if state.model.config != config or repr(state.tokenizer) != repr(store.tokenizer):
        raise UserError("the checkpoint's model or tokenizer is not the one that config.yaml describes")
    if state.data_fingerprint != store.fingerprint:
        raise UserError(f"{store.folder} holds other tokens than those that the run began with; restore its text")
    if state.step > settings.max_steps:
        raise UserError(f"trainer.max_steps must be at least the {state.step} done, got {settings.max_steps}")


def restore_callbacks(callbacks: Sequence[Callback], state: TrainingState) -> None:
    """Give each callback what it kept; one of a user's that the run was begun without starts anew.

    Raises UserError: the state lacks that of a callback of ours, or a callback keeps more than its state.
    """
    for callback in callbacks:
        if type(callback).on_load_checkpoint is not Callback.on_load_checkpoint:
            raise UserError(
                f"{type(callback).__name__} cannot go on: it keeps more than its state_dict, and a run that is resumed "
                "reads no more than that"
            )
        if not callback.state_dict():
            continue
        ours = type(callback).__module__.startswith("gptmini.")
        if callback.state_key not in state.callbacks and not ours:
            continue
        try:
            callback.load_state_dict(state.callbacks[callback.state_key])
        except Exception as error:  # of whatever class: a stranger may have written the file
            raise UserError(f"the checkpoint holds no state of {callback.state_key} ({error!r})") from None


def _check_plain(value: object, owner: str) -> None:
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif type(value) in PLAIN:
        parts = []
    else:
        raise UserError(f"{owner} keeps a {type(value).__name__} in its state; a checkpoint holds only plain values")
    for part in parts:
        _check_plain(part, owner)
