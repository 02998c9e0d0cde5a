"""One run: its parts, put together and checked, and the Trainer that carries it out."""

import logging
import threading
import warnings
from pathlib import Path

import lightning as L
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from gptmini.data.store import TokenStore
from gptmini.model import GPTConfig, new_gpt
from gptmini.model.checkpoint import build_model
from gptmini.training.checkpointing import AtomicCheckpointIO, RunCheckpoints
from gptmini.training.datamodule import TokenDataModule
from gptmini.training.module import GPTModule
from gptmini.training.settings import TrainerSettings, micro_steps

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed"}  # our name to Lightning's


def assemble(
    store: TokenStore,
    config: GPTConfig,
    settings: TrainerSettings,
    *,
    seed: int,
    checkpoint: dict | None = None,
    **parts: object,
) -> tuple[GPTModule, TokenDataModule]:
    """Put together what a Trainer fits: a model on the store's tokens, and their batches.

    The seed is that of first weights, batches and dropout; the model is new, or that of a checkpoint that
    read_checkpoint returned, to go on with; parts are the optimizer, schedule and compile of GPTModule.

    Raises ValueError: a seed or an optimizer setting out of range, a split too short for its windows, or a checkpoint
    of another model, other tokens or later steps than these.
    """
    if checkpoint is None:
        model = new_gpt(config, seed)
    else:
        own, step, model = checkpoint["gptmini"], checkpoint["global_step"], build_model(checkpoint).train()
        if model.config != config or repr(own.get("tokenizer")) != repr(store.tokenizer):
            raise ValueError("the checkpoint's model or tokenizer is not the one that config.yaml describes")
        if own["data"].get("fingerprint") != store.fingerprint:
            raise ValueError(f"{store.folder} holds other tokens than those that the run began with; restore its text")
        if step > settings.max_steps:
            raise ValueError(f"trainer.max_steps must be at least the {step} done, got {settings.max_steps}")
    module = GPTModule(model, store, settings, seed=seed, checkpoint=checkpoint, **parts)
    return module, TokenDataModule(store, settings, context_length=config.context_length, seed=seed)


def build_trainer(
    settings: TrainerSettings,
    folder: Path,
    *,
    device: str,
    precision: str,
    callbacks: list[L.Callback],
    loggers: list[Logger],
    checkpoint: dict | None = None,
) -> L.Trainer:
    """Lightning's Trainer on cpu, cuda or mps, in steps of the optimizer; bar, checkpoints and data order are ours.

    With a checkpoint that assemble accepted it begins at that step. Of its own state Lightning needs two counters,
    which follow from the step; so its loops are not restored, and devices and batch_size may differ from before.

    Raises ValueError: the checkpoint holds no state for one of the callbacks.
    """
    n_micro_steps = micro_steps(settings.global_batch_size, settings.batch_size, settings.devices)
    step = 0 if checkpoint is None else checkpoint["global_step"]
    for callback in callbacks if checkpoint else ():
        if callback.state_dict():
            try:
                callback.load_state_dict(checkpoint["callbacks"][callback.state_key])
            except Exception as error:  # of whatever class: a stranger wrote it
                raise ValueError(f"the checkpoint holds no state of {callback.state_key} ({error!r})") from None
    # Was it stopped between a step and its validation? Lightning calls one before the first step a sanity check.
    validate_first = step and settings.validation_due(step) and checkpoint["gptmini"]["validated_step"] != step
    trainer = L.Trainer(
        accelerator="gpu" if device == "cuda" else device,
        devices=settings.devices,
        precision=PRECISIONS[precision],
        max_steps=settings.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=n_micro_steps,
        val_check_interval=settings.val_every_steps * n_micro_steps,  # Lightning counts micro-steps here
        check_val_every_n_epoch=None,
        num_sanity_val_steps=-1 if validate_first else 0,
        logger=loggers,
        callbacks=sorted(callbacks, key=lambda callback: isinstance(callback, RunCheckpoints)),  # logs are kept first
        plugins=[AtomicCheckpointIO()],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )
    trainer.fit_loop.epoch_loop.batch_progress.total.ready = step * n_micro_steps
    trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
    return trainer


def is_first_process() -> bool:
    """Whether this is the process of a run that speaks and writes."""
    return rank_zero_only.rank == 0


def quieten_lightning() -> None:
    """Silence hints at other products, and a deprecation between Lightning and torch that no setting avoids.

    TensorBoard's writing thread prints a traceback where the main thread raises the same error; that too is silenced.
    """
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec.*")
    threading.excepthook = lambda hint: None if issubclass(hint.exc_type, OSError) else threading.__excepthook__(hint)
