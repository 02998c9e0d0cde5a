"""Build Lightning's Trainer for a run, and check the callbacks of a user."""

import io
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.strategies import DDPStrategy, Strategy

from gptmini.checkpoint import TrainingState
from gptmini.system.errors import UserError
from gptmini.system.world import World, this_world
from gptmini.training.callbacks.checkpoints import AtomicCheckpointIO, RunCheckpoints
from gptmini.training.devices.distributed import ShardedStrategy
from gptmini.training.devices.process_group import cluster_of
from gptmini.training.module import GPTModule
from gptmini.training.trainer_settings import TrainerSettings


def build_trainer(
    module: GPTModule,
    folder: Path,
    *,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    state: TrainingState | None = None,
    world: World | None = None,
) -> Trainer:
    """Build Lightning's Trainer for a run.

    If a state is given, training starts at the step of the state. gptmini does not restore the saved state of
    Lightning's loops. The loops need only two counters, and gptmini computes the two counters from the step. So a
    resumed run may use different devices and a different batch_size.

    Args:
        module: the module that assemble returned for the state.
        state: the state that assemble accepted; None to start from the first step.
        world: the rank of this process and the ranks of the run; None to read the ranks from the environment.
    """
    settings = module.settings  # in these settings, batch_size is a number
    device = module.hardware.device
    n_micro_steps = settings.n_micro_steps

    # If a run was stopped between a step and its validation, the resumed run starts with this validation.
    step = 0 if state is None else state.step
    validate_first = module.origin is not None and step == 0
    if state is not None and step > 0:
        validate_first = settings.validation_due(step) and state.validated_step != step

    is_fsdp2 = settings.strategy == "fsdp2"
    trainer = Trainer(
        accelerator="gpu" if device == "cuda" else device,
        devices=settings.devices_here,
        num_nodes=settings.n_ranks // settings.devices_here,
        strategy=_strategy_of(settings, device),
        # FSDP2 itself rounds the weights when it gathers them, so Lightning must not use autocast. With bf16_stream,
        # GPTModule turns the autocast off for the training loss.
        precision="32-true" if is_fsdp2 or module.hardware.precision == "fp32" else "bf16-mixed",
        inference_mode=not is_fsdp2,  # inference mode skips the hooks that gather weights
        max_steps=settings.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=n_micro_steps,
        val_check_interval=settings.validation_interval * n_micro_steps,  # in micro-steps
        check_val_every_n_epoch=None,
        # Lightning's validation before the first step is called the sanity check. -1 means all batches.
        num_sanity_val_steps=-1 if validate_first else 0,
        logger=list(loggers),
        # RunCheckpoints is last, so each step is logged before it is saved.
        callbacks=sorted(callbacks, key=lambda callback: isinstance(callback, RunCheckpoints)),
        plugins=[AtomicCheckpointIO(), cluster_of(world or this_world())],
        default_root_dir=folder,
        enable_progress_bar=any(isinstance(one, ProgressBar) for one in callbacks),
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(one, Checkpoint) for one in callbacks),
        use_distributed_sampler=False,
    )

    # In every micro-step, Lightning broadcasts to all ranks whether a SIGTERM has arrived, and waits for the broadcast.
    # See Lightning's issue 21487. gptmini exchanges stop requests only once per step instead. Lightning 2.6 has no
    # setting to turn the broadcast off.
    loop = trainer.fit_loop.epoch_loop
    loop._broadcast_sigterm_tensor = lambda: None

    # Lightning's Trainer has no setting for the first step. See Lightning's issue 730. But the loop of the Trainer can
    # load a state. So set the loop's counters of finished micro-steps and finished optimizer steps.
    counters = loop.state_dict()
    counters["batch_progress"]["total"]["ready"] = step * n_micro_steps
    optimizer = counters["automatic_optimization.optim_progress"]["optimizer"]
    optimizer["step"]["total"]["completed"] = step
    loop.load_state_dict(counters)
    loop.restarting = False  # gptmini repeats an interrupted validation
    return trainer


def _strategy_of(settings: TrainerSettings, device: str) -> Strategy | str:
    timeout = timedelta(seconds=settings.timeout)
    if settings.strategy == "fsdp2" and device == "mps":
        raise UserError("trainer.strategy=fsdp2 requires CUDA GPUs or the CPU, got device=mps")
    if settings.strategy == "fsdp2":
        return ShardedStrategy(
            data_parallel_size=settings.n_ranks,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            timeout=timeout,
        )

    if settings.n_ranks == 1 and settings.strategy == "auto":
        return "auto"
    # The only buffers of the model are constant tables. If DDP broadcast the buffers before each forward pass, the
    # processes would wait for each other in a validation. But in a validation, one process may have one more batch than
    # another process.
    return DDPStrategy(timeout=timeout, broadcast_buffers=False)


def check_callback(key: str, callback: object) -> Callback:
    """Return the object of a key. Raise UserError if it is not a callback with a state of plain values.

    Checkpoints are read with torch's option weights_only, so that they cannot run code.
    """
    if not isinstance(callback, Callback):
        raise UserError(f"{key} must be a lightning.Callback, got {callback!r}")

    state = callback.state_dict()
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:  # the values belong to the user, so catch any class of error
        raise UserError(
            f"cannot save the state of {type(callback).__name__} in a checkpoint: {type(error).__name__}; "
            "its state_dict must return tensors and plain values"
        ) from None
    return callback
