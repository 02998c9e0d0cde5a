"""Lightning's Trainer and what it fits, put together and checked."""

import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.strategies import DDPStrategy, Strategy

from gptmini.checkpoint.training_state import TrainingState
from gptmini.data.store import TokenStore
from gptmini.model import GPT, GPTConfig, check_seed, new_gpt
from gptmini.model.adapting import adapted
from gptmini.model.adapting import freeze as freeze_weights
from gptmini.tokenizer import of_ids
from gptmini.training.batch_size import choose_batch_size
from gptmini.training.checkpoints import AtomicCheckpointIO, RunCheckpoints
from gptmini.training.datamodule import TokenDataModule
from gptmini.training.distributed import ShardedStrategy
from gptmini.training.module import GPTModule
from gptmini.training.ranks import cluster_of
from gptmini.training.trainer_settings import TrainerSettings
from gptmini.user_error import UserError
from gptmini.world import World, this_world

# gptmini's name of a precision to Lightning's. With bf16_stream Lightning's autocast serves validation: GPTModule turns
# autocast off for the training loss.
LIGHTNING_PRECISIONS: dict[str, Literal["32-true", "bf16-mixed"]] = {
    "fp32": "32-true",
    "bf16": "bf16-mixed",
    "bf16_stream": "bf16-mixed",
}
# Loggers of Lightning's whose hints are silenced.
NOISY = ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero", "lightning.fabric")
ALL_TO_ALL = "torch.distributed.tensor._collective_utils"


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
    initial: GPT | None = None,
    origin: dict | None = None,
    freeze: Sequence[str] = (),
) -> tuple[GPTModule, TokenDataModule]:
    """Put together what a Trainer fits: a model on the store's tokens, and the batches of these tokens.

    Args:
        store: the training and validation tokens.
        config: sizes of the model.
        settings: the trainer settings, whose devices and num_nodes are numbers. If their batch_size is auto, it is
            chosen for the device, and module.settings.batch_size is the number.
        optimizer: as for GPTModule, like schedule and precision.
        seed: of the first weights, the order of batches and dropout; a whole number.
        compile: whether the loss of a micro-step is compiled.
        device: cpu, cuda or mps, for the choice of a batch size.
        state: what training goes on from, its model included; None for the first step.
        initial: the trained model that a run without a state begins with; None for new weights.
        origin: as for GPTModule.
        freeze: beginnings of names of weights that training leaves as they are.

    Returns the module and the data to give to Trainer.fit.
    Raises UserError: a seed or an optimizer setting is out of range, a split is too short for its windows, the state is
    of another model, of other tokens or of more steps than these, the initial model does not fit the config, or freeze
    names no weights.
    """
    if state is not None:
        _check_state(state, store, config, settings)
        model = state.model
    elif initial is not None:
        check_seed(seed)
        model = adapted(initial, config).train()
    else:
        model = new_gpt(config, seed)
    freeze_weights(model, freeze)

    if settings.batch_size == "auto":
        batch_size = choose_batch_size(
            model,
            global_batch_size=settings.global_batch_size,
            n_ranks=settings.n_ranks,
            device=device,
            precision=precision,
            compile=compile,
            recompute=settings.checkpoint_activations,
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
        origin=origin,
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
    begins_trained: bool = False,
    world: World | None = None,
) -> Trainer:
    """Build Lightning's Trainer, which counts in optimizer steps; batch order and checkpoint files are gptmini's own.

    With a state, training begins at the state's step. Lightning's loops are not restored: they need two counters, which
    follow from the step, so that devices and batch_size may differ from before.

    Args:
        settings: the settings of the module, whose batch_size, devices and num_nodes are numbers.
        folder: the run folder.
        device: cpu, cuda or mps.
        precision: fp32, bf16 or bf16_stream.
        callbacks: each with its state restored already, by restore_callbacks.
        loggers: each is told every scalar.
        state: the state that assemble accepted; None to start from the first step.
        begins_trained: whether the run begins with trained weights, which are validated before the first step.
        world: which rank of the run this process is; None to read that from the environment.
    """
    n_micro_steps = settings.n_micro_steps

    # A run that was stopped between a step and its validation begins with that validation.
    step = 0 if state is None else state.step
    validate_first = begins_trained and step == 0
    if state is not None and step > 0:
        validate_first = settings.validation_due(step) and state.validated_step != step

    is_fsdp2 = settings.strategy == "fsdp2"
    trainer = Trainer(
        accelerator="gpu" if device == "cuda" else device,
        devices=settings.devices_here,
        num_nodes=settings.n_ranks // settings.devices_here,
        strategy=_strategy_of(settings, device),
        # FSDP2 rounds weights itself, where they are gathered.
        precision="32-true" if is_fsdp2 else LIGHTNING_PRECISIONS[precision],
        inference_mode=not is_fsdp2,  # its tensors know nothing of the hooks that gather weights
        max_steps=settings.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=n_micro_steps,
        val_check_interval=settings.val_every_steps * n_micro_steps,  # in micro-steps
        check_val_every_n_epoch=None,
        # Lightning calls a validation before the first step a sanity check; -1 is the whole split.
        num_sanity_val_steps=-1 if validate_first else 0,
        logger=list(loggers),
        callbacks=_checkpoints_last(callbacks),
        plugins=[AtomicCheckpointIO(), cluster_of(world or this_world())],
        default_root_dir=folder,
        enable_progress_bar=_has_one_of(callbacks, ProgressBar),
        enable_model_summary=False,
        enable_checkpointing=_has_one_of(callbacks, Checkpoint),
        use_distributed_sampler=False,
    )

    # Between ranks Lightning would pass on a SIGTERM, and wait for it, in every micro-step (Lightning's issue 21487).
    # Stopping does so instead, in the one exchange of a step. Lightning 2.6 has no setting that turns its own off.
    loop = trainer.fit_loop.epoch_loop
    loop._broadcast_sigterm_tensor = lambda: None

    # Lightning's Trainer cannot be told a first step (its issue 730), but its loop can be given a state. Two counters
    # follow from the step: micro-steps and optimizer steps done.
    counters = loop.state_dict()
    counters["batch_progress"]["total"]["ready"] = step * n_micro_steps
    optimizer = counters["automatic_optimization.optim_progress"]["optimizer"]
    optimizer["step"]["total"]["completed"] = step
    loop.load_state_dict(counters)
    loop.restarting = False  # no validation was left half done
    return trainer


def _strategy_of(settings: TrainerSettings, device: str) -> Strategy | str:
    """Return Lightning's strategy for the settings of a trainer.

    Raises UserError: device, which is cpu, cuda or mps, does not bear the strategy.
    """
    timeout = timedelta(seconds=settings.timeout)
    if settings.strategy == "fsdp2" and device == "mps":
        raise UserError("trainer.strategy=fsdp2 needs CUDA GPUs or the CPU, got device=mps")
    if settings.strategy == "fsdp2":
        return ShardedStrategy(
            data_parallel_size=settings.n_ranks,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            timeout=timeout,
        )

    is_distributed = settings.n_ranks > 1 or settings.strategy == "ddp"
    if not is_distributed:
        return "auto"
    # The model's only buffers are tables that never change. Sent before each forward pass, they would make processes
    # wait for each other in a validation, of which one has a batch more than another.
    return DDPStrategy(timeout=timeout, broadcast_buffers=False)


def _checkpoints_last(callbacks: Sequence[Callback]) -> list[Callback]:
    """Return the callbacks with RunCheckpoints behind all others, so that they log a step before it is saved."""
    return sorted(callbacks, key=lambda callback: isinstance(callback, RunCheckpoints))


def _has_one_of(callbacks: Sequence[Callback], kind: type) -> bool:
    return any(isinstance(callback, kind) for callback in callbacks)


def check_callback(name: str, callback: object) -> Callback:
    """Return what callbacks.NAME of the configuration has made, if it is a callback whose state can be saved.

    A checkpoint is read by torch's weights_only, which runs no code: tensors and plain values alone can be read again.

    Raises UserError: it is no callback of Lightning's, or its state holds another value.
    """
    if not isinstance(callback, Callback):
        raise UserError(
            f"callbacks.{name} must be a callback of Lightning's kind, got {callback!r}"
        )

    state = callback.state_dict()
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:  # of whatever class: the values are not gptmini's
        raise UserError(
            f"{type(callback).__name__} keeps in its state what a checkpoint cannot hold: "
            f"tensors and plain values alone can be read again ({type(error).__name__})"
        ) from None
    return callback


def quieten_lightning() -> None:
    """Silence hints at other products, a deprecation that no setting avoids, and tracebacks of TensorBoard's thread.

    This holds for the whole process, unless it happens inside of keeping_noise().
    """
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)

    # gloo sends shares to their owners in a slower way than NCCL does.
    logging.getLogger(ALL_TO_ALL).setLevel(logging.ERROR)

    # Lightning uses a class of torch's pytrees that torch has deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec.*")

    # torch 2.13 has another name for an option of DDP, which torch 2.11 does not know.
    warnings.filterwarnings("ignore", message=".*`broadcast_buffers` is deprecated.*")

    # TensorBoard's writing thread prints a traceback of an OSError, and the main thread raises the same error.
    threading.excepthook = _silence_os_errors


@contextmanager
def keeping_noise() -> Iterator[None]:
    """Undo after the block what quieten_lightning does, for a caller whose process is not gptmini's."""
    levels = {name: logging.getLogger(name).level for name in (*NOISY, ALL_TO_ALL)}
    hook = threading.excepthook
    try:
        with warnings.catch_warnings():
            yield
    finally:
        threading.excepthook = hook
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _silence_os_errors(hint: threading.ExceptHookArgs) -> None:
    """Let a thread die of an OSError without a word; print the traceback of any other exception."""
    if not issubclass(hint.exc_type, OSError):
        threading.__excepthook__(hint)


def _check_state(
    state: TrainingState, store: TokenStore, config: GPTConfig, settings: TrainerSettings
) -> None:
    """Raise UserError unless a run of this model, on these tokens and of so many steps, can go on from the state."""
    is_same_tokenizer = repr(of_ids(state.tokenizer)) == repr(of_ids(store.tokenizer_state))
    if state.model.config != config or not is_same_tokenizer:
        raise UserError(
            "the checkpoint's model or tokenizer is not the one that config.yaml describes"
        )
    if state.data_fingerprint != store.fingerprint:
        raise UserError(
            f"{store.folder} holds other tokens than those that the run began with, because the text has changed, or "
            f"the way in which this version reads or encodes it; restore the text, or {state.data_folder}"
        )
    if state.step > settings.max_steps:
        raise UserError(
            f"trainer.max_steps must be at least the {state.step} done, got {settings.max_steps}"
        )


def restore_callbacks(callbacks: Sequence[Callback], state: TrainingState) -> None:
    """Give each callback its state of a checkpoint; a user's callback that the run was begun without starts anew.

    Raises UserError: the checkpoint lacks the state of one of gptmini's callbacks, or a callback keeps more than its
    state_dict, which a resumed run does not read.
    """
    for callback in callbacks:
        if type(callback).on_load_checkpoint is not Callback.on_load_checkpoint:
            raise UserError(
                f"{type(callback).__name__} cannot go on: it keeps more than its state_dict, "
                "and a run that is resumed reads no more than that"
            )
        if not callback.state_dict():
            continue

        is_ours = type(callback).__module__.startswith("gptmini.")
        if callback.state_key not in state.callbacks and not is_ours:
            continue

        try:
            callback.load_state_dict(state.callbacks[callback.state_key])
        except Exception as error:  # of whatever class: a stranger may have written the file
            raise UserError(
                f"the checkpoint holds no state of {callback.state_key} ({type(error).__name__})"
            ) from None
