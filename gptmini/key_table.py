"""A table of the keys that have special rights. A key without special rights does not need a row.

Text keys are used before Hydra composes the configuration and before the settings classes are imported. Therefore this
module does not import any other module of gptmini.
"""

from functools import cache

# The special rights of a key, or of a group and all keys in it.
RIGHTS = {
    # The value is always text, such as a path or a name. It is never read as a number or as several values.
    "text",
    "place",  # only sets where a run is stored
    "unstored",  # config.yaml stores null, because the run's folder may be moved
    "of_run",  # gptmini prepare refuses the key, because prepare does not train a run
    # May change in a resumed run. The key affects how the run is computed and watched, but not what is trained.
    "resumable",
    "only_off",  # may change in a resumed run, but the new value must be null
    "adaptable",  # may differ between a model and a run that starts with its weights
    "by_budget",  # chosen by budget=, unless an override or an experiment sets it
    "of_sweep",  # the sweep sets the key, or it is the same for all runs of a sweep
    # May change when a sweep is resumed. The key affects where and how the runs are computed.
    "sweep_resumable",
    "for_prepare",  # gptmini prepare uses the key
    "unmeasured",  # does not affect any measured value
    "unreported",  # reports do not list the key among the overrides
}
# Rights that several keys share.
BUNDLES = {
    "compute": "resumable sweep_resumable",  # how and where a run is computed
    "look": "unmeasured unreported",  # where a run is stored, and how it is shown
    "start": "text place unstored of_run unmeasured unreported",  # the folder of the run that a command starts
}
# The rights and bundles of each key.
KEYS = {
    "name": "text look of_sweep",
    "folder": "start",
    "resume": "start",
    "runs_dir": "text place look of_sweep sweep_resumable",
    "data_dir": "text look compute for_prepare",
    "console": "look compute",
    "num_workers": "compute for_prepare",
    "verify": "for_prepare",
    "inspect": "for_prepare",
    "init_from": "text",
    "budget": "of_run",
    "experiment": "for_prepare",
    "data": "for_prepare",
    "data.path": "text",
    "data.val_path": "text",
    "data.folder": "text sweep_resumable",
    "data.name": "text",
    "data.dataset": "text",
    "data.subset": "text",
    "data.split": "text",
    "data.val_split": "text",
    "data.revision": "text",
    "data.separator": "text",
    "tokenizer": "for_prepare",
    "tokenizer.path": "text",
    "tokenizer.vocab_size": "by_budget",
    "model.d_model": "by_budget",
    "model.n_layers": "by_budget",
    "model.n_heads": "by_budget",
    "model.n_kv_heads": "by_budget",
    "model.d_ff": "by_budget",
    "model.context_length": "adaptable by_budget",
    "model.dropout": "adaptable",
    "trainer.global_batch_size": "by_budget",
    "trainer.max_steps": "resumable by_budget",
    "trainer.val_every_steps": "resumable by_budget",
    "trainer.max_time": "resumable",
    "trainer.max_bad_steps": "resumable",
    "trainer.batch_size": "compute",
    "trainer.device": "compute",
    "trainer.devices": "compute",
    "trainer.num_nodes": "compute",
    "trainer.strategy": "compute",
    "trainer.checkpoint_activations": "compute",
    "trainer.timeout": "compute",
    "trainer.requeue": "compute",
    "trainer.compile": "compute",
    "trainer.threads": "compute unreported",
    "callbacks.scalars.every_steps": "resumable",
    "callbacks.scalars.peak_tflops": "resumable",
    "callbacks.checkpoints.every_steps": "resumable",
    "callbacks.samples": "resumable only_off",
    "callbacks.pictures": "resumable only_off",
}


@cache
def keys_with(right: str) -> frozenset[str]:
    """Return the keys that have a right, by itself or in a bundle."""
    assert right in RIGHTS, right
    names = {right, *(name for name, rights in BUNDLES.items() if right in rights.split())}
    return frozenset(key for key, row in KEYS.items() if names & set(row.split()))
