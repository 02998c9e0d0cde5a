"""What TensorBoard is given: under which tags, and in which layout.

TensorBoard orders groups by name: train, val, weights, work, and last the close looks of zoom; samples, then setup.
"""

LAYOUT = {  # of the page Custom Scalars: regular expressions of tags by chart, by category
    "Is it learning?": {
        "loss, nats per token": ["^train/loss$", "^val/loss$"],
        "bits per byte": ["^val/bits_per_byte$"],
        "generalisation gap: val less train loss": ["^val/gap$"],
    },
    "Is it about to diverge?": {
        "gradient norm before clipping": ["^weights/grad_norm$"],
        "share of clipped steps": ["^weights/clipped$"],
        "learning rate": ["^train/lr/"],
        "update-to-weight ratio": ["^weights/update_ratio/"],
        "weight norm": ["^weights/norm/"],
        "steps not applied": ["^train/bad_steps$"],
    },
    "How fast is it?": {
        "tokens per second": ["^work/tokens_per_second$"],
        "milliseconds of a step": ["^work/ms/"],
        "peak memory, GB": ["^work/memory_gb$"],
        "model FLOP utilisation": ["^work/mfu$"],
    },
    "How far is it?": {
        "tokens seen": ["^train/tokens$"],
        "passes over the data": ["^train/passes$"],
    },
}
COMPARED = ("val/loss", "val/bits_per_byte", "work/tokens_per_second")  # what the page HParams shows of each run
VALIDATION = ("val/", "samples", "zoom/")  # how the tags begin that a validation writes
BEGINNING = ("setup/", "_hparams_/", "custom_scalars__config__")  # of what each process of a run writes anew
