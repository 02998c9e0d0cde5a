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
KEYS = {
    "name": "text of_sweep unmeasured unreported",
    "folder": "text place unstored of_run unmeasured unreported",
    "resume": "text place unstored of_run unmeasured unreported",
    "runs_dir": "text place of_sweep sweep_resumable unmeasured unreported",
    "data_dir": "text resumable sweep_resumable for_prepare unmeasured unreported",
    "console": "resumable sweep_resumable unmeasured unreported",
    "num_workers": "resumable sweep_resumable for_prepare",
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
    "model.dropout": "adaptable by_budget",
    "trainer.global_batch_size": "by_budget",
    "trainer.max_steps": "resumable by_budget",
    "trainer.val_every_steps": "resumable by_budget",
    "trainer.max_time": "resumable",
    "trainer.max_bad_steps": "resumable",
    "trainer.batch_size": "resumable sweep_resumable",
    "trainer.device": "resumable sweep_resumable",
    "trainer.devices": "resumable sweep_resumable",
    "trainer.num_nodes": "resumable sweep_resumable",
    "trainer.strategy": "resumable sweep_resumable",
    "trainer.checkpoint_activations": "resumable sweep_resumable",
    "trainer.timeout": "resumable sweep_resumable",
    "trainer.requeue": "resumable sweep_resumable",
    "trainer.compile": "resumable sweep_resumable",
    "trainer.threads": "resumable sweep_resumable unreported",
    "callbacks.scalars.every_steps": "resumable",
    "callbacks.scalars.peak_tflops": "resumable",
    "callbacks.checkpoints.every_steps": "resumable",
    "callbacks.samples": "resumable only_off",
    "callbacks.pictures": "resumable only_off",
}


@cache
def keys_with(right: str) -> frozenset[str]:
    """Return the keys that have a right."""
    assert right in RIGHTS, right
    return frozenset(key for key, rights in KEYS.items() if right in rights.split())
