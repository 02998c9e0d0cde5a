"""A table of the keys that have special rights. A key without special rights does not need a row.

Text keys are used before Hydra composes the configuration and before the settings classes are imported. Therefore this
module does not import any other module of gptmini.
"""

from dataclasses import dataclass, fields
from functools import cache


@dataclass(frozen=True, kw_only=True)
class Rights:
    """The special rights of a key, or of a group and all keys in it."""

    # The value is always text, such as a path or a name. It is never read as a number or as several values.
    text: bool = False
    place: bool = False  # only sets where a run is stored
    unstored: bool = False  # config.yaml stores null, because the run's folder may be moved
    of_run: bool = False  # gptmini prepare refuses the key, because prepare does not train a run

    # May change in a resumed run. The key affects how the run is computed and watched, but not what is trained.
    resumable: bool = False
    only_off: bool = False  # may change in a resumed run, but the new value must be null
    adaptable: bool = False  # may differ between a model and a run that starts with its weights
    by_budget: bool = False  # chosen by budget=, unless an override or an experiment sets it

    of_sweep: bool = False  # the sweep sets the key, or it is the same for all runs of a sweep
    # May change when a sweep is resumed. The key affects where and how the runs are computed.
    sweep_resumable: bool = False

    for_prepare: bool = False  # gptmini prepare uses the key
    unmeasured: bool = False  # does not affect any measured value
    unreported: bool = False  # reports do not list the key among the overrides


KEYS = {
    "name": Rights(text=True, of_sweep=True, unmeasured=True, unreported=True),
    "folder": Rights(
        text=True, place=True, unstored=True, of_run=True, unmeasured=True, unreported=True
    ),
    "resume": Rights(
        text=True, place=True, unstored=True, of_run=True, unmeasured=True, unreported=True
    ),
    "runs_dir": Rights(
        text=True,
        place=True,
        of_sweep=True,
        sweep_resumable=True,
        unmeasured=True,
        unreported=True,
    ),
    "data_dir": Rights(
        text=True,
        resumable=True,
        sweep_resumable=True,
        for_prepare=True,
        unmeasured=True,
        unreported=True,
    ),
    "console": Rights(resumable=True, sweep_resumable=True, unmeasured=True, unreported=True),
    "num_workers": Rights(resumable=True, sweep_resumable=True, for_prepare=True),
    "verify": Rights(for_prepare=True),
    "inspect": Rights(for_prepare=True),
    "init_from": Rights(text=True),
    "budget": Rights(of_run=True),
    "experiment": Rights(for_prepare=True),
    "data": Rights(for_prepare=True),
    "data.path": Rights(text=True),
    "data.val_path": Rights(text=True),
    "data.folder": Rights(text=True, sweep_resumable=True),
    "data.name": Rights(text=True),
    "data.dataset": Rights(text=True),
    "data.subset": Rights(text=True),
    "data.split": Rights(text=True),
    "data.val_split": Rights(text=True),
    "data.revision": Rights(text=True),
    "data.separator": Rights(text=True),
    "tokenizer": Rights(for_prepare=True),
    "tokenizer.path": Rights(text=True),
    "tokenizer.vocab_size": Rights(by_budget=True),
    "model.d_model": Rights(by_budget=True),
    "model.n_layers": Rights(by_budget=True),
    "model.n_heads": Rights(by_budget=True),
    "model.n_kv_heads": Rights(by_budget=True),
    "model.d_ff": Rights(by_budget=True),
    "model.context_length": Rights(adaptable=True, by_budget=True),
    "model.dropout": Rights(adaptable=True, by_budget=True),
    "trainer.global_batch_size": Rights(by_budget=True),
    "trainer.max_steps": Rights(resumable=True, by_budget=True),
    "trainer.val_every_steps": Rights(resumable=True, by_budget=True),
    "trainer.max_time": Rights(resumable=True),
    "trainer.max_bad_steps": Rights(resumable=True),
    "trainer.batch_size": Rights(resumable=True, sweep_resumable=True),
    "trainer.device": Rights(resumable=True, sweep_resumable=True),
    "trainer.devices": Rights(resumable=True, sweep_resumable=True),
    "trainer.num_nodes": Rights(resumable=True, sweep_resumable=True),
    "trainer.strategy": Rights(resumable=True, sweep_resumable=True),
    "trainer.checkpoint_activations": Rights(resumable=True, sweep_resumable=True),
    "trainer.timeout": Rights(resumable=True, sweep_resumable=True),
    "trainer.requeue": Rights(resumable=True, sweep_resumable=True),
    "trainer.compile": Rights(resumable=True, sweep_resumable=True),
    "trainer.threads": Rights(resumable=True, sweep_resumable=True, unreported=True),
    "callbacks.scalars.every_steps": Rights(resumable=True),
    "callbacks.scalars.peak_tflops": Rights(resumable=True),
    "callbacks.checkpoints.every_steps": Rights(resumable=True),
    "callbacks.samples": Rights(resumable=True, only_off=True),
    "callbacks.pictures": Rights(resumable=True, only_off=True),
}


@cache
def keys_with(right: str) -> frozenset[str]:
    """Return the keys that have a right. The argument is the name of the right's field in Rights."""
    assert right in {field.name for field in fields(Rights)}, right
    return frozenset(key for key, rights in KEYS.items() if getattr(rights, right))
