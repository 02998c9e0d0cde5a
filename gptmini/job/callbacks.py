"""Build the callbacks of a run, and check what needs torch, before the folder of the run and the text are opened."""

from gptmini.configuration.building import build_component
from gptmini.model import freeze, meta_gpt
from gptmini.training import (
    Callback,
    Pictures,
    Samples,
    Settings,
    check_callback,
    hardware_of,
    quieten_lightning,
)


def build_callbacks(settings: Settings) -> list[Callback]:
    """Build the callbacks of a run. Silence Lightning in this process.

    Raises UserError if a callback cannot be built, if the pictures do not fit the model, if a prefix in freeze does not
    match any weight, or if a device is missing.
    """
    quieten_lightning()
    hardware_of(settings)  # raises UserError if a device is missing
    if settings.root.frozen_prefixes:
        freeze(meta_gpt(settings.model.with_vocab_size(1)), settings.root.frozen_prefixes)

    callbacks = []
    for component in settings.callbacks:
        callback = check_callback(component.key, build_component(component))
        if isinstance(callback, Samples):
            callback.key = component.key
        elif isinstance(callback, Pictures):
            callback.check(settings.model)
        callbacks.append(callback)
    return callbacks
