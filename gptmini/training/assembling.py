"""Put together what a Trainer fits: a model on its tokens, and their batches."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lightning import Callback

from gptmini.checkpoint.training_state import TrainingState
from gptmini.data.store import TokenStore
from gptmini.loading import initial_model
from gptmini.model import GPT, GPTConfig, check_seed, new_gpt
from gptmini.model.adapting import adapted, freeze
from gptmini.tokenizer import of_ids
from gptmini.training.callbacks.samples import Samples
from gptmini.training.datamodule import TokenDataModule
from gptmini.training.devices.batch_size import choose_batch_size
from gptmini.training.module import GPTModule
from gptmini.training.settings import Settings
from gptmini.training.trainer_settings import TrainerSettings
from gptmini.user_error import UserError


def assemble(
    settings: Settings, store: TokenStore, state: TrainingState | None = None
) -> tuple[GPTModule, TokenDataModule]:
    """Put together a model on the store's tokens, and the batches of these tokens.

    Args:
        settings: of the run. If trainer.batch_size is auto, it is chosen for the device, and module.settings.batch_size
            is the number. Its callbacks get their state.
        store: the training and validation tokens.
        state: what training goes on from, its model included; None for the first step.

    Returns the module and the data to give to Trainer.fit.
    Raises UserError: a seed or an optimizer setting is out of range, a split is too short for its windows, a prompt
    does not fit the tokenizer, the state is of another model, of other tokens or of more steps than these, the model of
    init_from does not fit, or freeze names no weights.
    """
    check_prompts(settings.callbacks, store)
    config = settings.model.with_vocab_size(store.tokenizer.n_vocab)
    model, origin = _model_of(settings, config, store, state)
    freeze(model, settings.root.frozen)
    # A run without a step done begins again, with callbacks that have seen nothing.
    if state is not None and state.step > 0:
        restore_callbacks(settings.callbacks, state)

    hardware = settings.hardware
    trainer = settings.trainer
    if trainer.batch_size == "auto":
        batch_size = choose_batch_size(
            model,
            global_batch_size=trainer.global_batch_size,
            n_ranks=trainer.n_ranks,
            device=hardware.device,
            precision=hardware.precision,
            compile=hardware.compile,
            recompute=trainer.checkpoint_activations,
        )
        trainer = replace(trainer, batch_size=batch_size)

    settings = replace(settings, trainer=trainer)
    module = GPTModule(model, store, settings, state=state, origin=origin)
    seed = settings.root.seed
    data = TokenDataModule(store, trainer, context_length=config.context_length, seed=seed)
    return module, data


def check_prompts(callbacks: Sequence[Callback], store: TokenStore) -> None:
    """Raise UserError for a prompt of a callback that the tokenizer of a text cannot encode."""
    for callback in callbacks:
        if isinstance(callback, Samples):
            callback.check(store.tokenizer)


def _model_of(
    settings: Settings, config: GPTConfig, store: TokenStore, state: TrainingState | None
) -> tuple[GPT, dict[str, Any] | None]:
    """The model that training begins with or goes on with, and where its weights are from; None for new weights."""
    if state is not None:
        _check_state(state, store, config, settings.trainer)
        return state.model, state.origin
    check_seed(settings.root.seed)
    if settings.root.init_from is None:
        return new_gpt(config, settings.root.seed), None
    initial, origin = initial_model(settings.root.init_from)
    return adapted(initial, config).train(), origin


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
