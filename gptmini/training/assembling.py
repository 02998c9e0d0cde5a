"""Build the module and the data module that a Trainer fits."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lightning import Callback

from gptmini.checkpoint import TrainingState
from gptmini.data import TokenStore
from gptmini.loading import initial_model
from gptmini.model import GPT, GPTConfig, adapt, freeze, new_gpt
from gptmini.system.errors import UserError
from gptmini.system.hardware import Hardware, choose_hardware, give_back_memory
from gptmini.tokenizer import identity_of
from gptmini.training.callbacks.samples import Samples
from gptmini.training.datamodule import TokenDataModule
from gptmini.training.devices.batch_size import choose_batch_size
from gptmini.training.devices.compilation import should_compile
from gptmini.training.module import GPTModule
from gptmini.training.settings import Settings
from gptmini.training.trainer_settings import TrainerSettings


def assemble(
    settings: Settings,
    store: TokenStore,
    state: TrainingState | None = None,
    callbacks: Sequence[Callback] = (),
) -> tuple[GPTModule, TokenDataModule]:
    """Build the module that contains the model, and the data module that cuts batches from the tokens of the store.

    If a state is given, the run resumes from it, with its model and the state of its callbacks. If trainer.batch_size
    is 'auto', module.settings.batch_size is the batch size that was chosen for the device. On a GPU, so is compile.

    Raises UserError if a setting does not fit the others, the tokens, the callbacks, the model of init_from or the
    state.
    """
    for callback in callbacks:
        if isinstance(callback, Samples):
            callback.check(store.tokenizer)
    config = settings.model.with_vocab_size(store.tokenizer.n_vocab)
    model, origin = _model_of(settings, config, store, state)
    freeze(model, settings.root.frozen_prefixes)
    # A run that was stopped before its first step starts over with fresh callbacks.
    if state is not None and state.step > 0:
        restore_callbacks(callbacks, state)

    hardware = hardware_of(settings)
    batch_size = choose_batch_size(model, settings.trainer, hardware)
    trainer = replace(settings.trainer, batch_size=batch_size)
    settings = replace(settings, trainer=trainer)
    if trainer.compile == "auto" and hardware.compile:
        trial = GPTModule(copy.deepcopy(model), store, settings, replace(hardware, compile=False))
        n_steps = trainer.max_steps - (0 if state is None else state.step)
        compile, reason = should_compile(trial, n_steps)
        del trial
        give_back_memory(hardware.device)
        reasons = {**hardware.reasons, "compile": reason}
        hardware = replace(hardware, compile=compile, reasons=reasons)
        settings = replace(settings, trainer=replace(trainer, compile=compile))
    module = GPTModule(model, store, settings, hardware, state=state, origin=origin)
    seed = settings.root.seed
    data = TokenDataModule(store, trainer, context_length=config.context_length, seed=seed)
    return module, data


def hardware_of(settings: Settings) -> Hardware:
    """Return the device, the precision and the compilation of a run. Raise UserError if a device is missing."""
    trainer = settings.trainer
    return choose_hardware(
        trainer.device,
        trainer.precision,
        trainer.compile,
        trainer.devices_here,
        width=settings.model.d_model,
    )


def _model_of(
    settings: Settings, config: GPTConfig, store: TokenStore, state: TrainingState | None
) -> tuple[GPT, dict[str, Any] | None]:
    if state is not None:
        _check_state(state, store, config, settings.trainer)
        return state.model, state.origin
    if settings.root.init_from is None:
        return new_gpt(config, settings.root.seed), None
    initial, origin = initial_model(settings.root.init_from)
    return adapt(initial, config).train(), origin


def _check_state(
    state: TrainingState, store: TokenStore, config: GPTConfig, settings: TrainerSettings
) -> None:
    is_same_tokenizer = repr(identity_of(state.tokenizer)) == repr(
        identity_of(store.tokenizer_state)
    )
    if state.model.config != config or not is_same_tokenizer:
        raise UserError("the model or the tokenizer of the checkpoint differs from config.yaml")
    if state.data_fingerprint != store.fingerprint:
        raise UserError(
            f"the tokens in {store.folder} differ from the tokens of the run; restore the text or {state.data_folder}"
        )
    if state.step > settings.max_steps:
        raise UserError(
            f"trainer.max_steps must be at least {state.step}, because the run has done {state.step} steps, "
            f"got {settings.max_steps}"
        )


def restore_callbacks(callbacks: Sequence[Callback], state: TrainingState) -> None:
    """Restore the state of each callback. A callback that a user adds to a resumed run keeps its initial state.

    Raises UserError if the checkpoint does not have the state of a gptmini callback, or if a callback defines
    on_load_checkpoint. A resumed run calls only the load_state_dict of a callback.
    """
    for callback in callbacks:
        if type(callback).on_load_checkpoint is not Callback.on_load_checkpoint:
            raise UserError(
                f"{type(callback).__name__} cannot resume: gptmini does not call its on_load_checkpoint; "
                "keep all its state in state_dict"
            )
        if not callback.state_dict():
            continue

        is_ours = type(callback).__module__.startswith("gptmini.")
        if callback.state_key not in state.callbacks and not is_ours:
            continue

        try:
            callback.load_state_dict(state.callbacks[callback.state_key])
        except Exception as error:  # someone else may have written the file, so catch any error
            raise UserError(
                f"cannot restore {callback.state_key} from the checkpoint: {type(error).__name__}"
            ) from None
