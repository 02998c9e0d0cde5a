"""The charts in which TensorBoard and a report show the curves of a run, by the curves' tags.

TensorBoard orders groups of tags by name. Of scalars: train, val, weights, work; of images and texts: samples, setup,
zoom, which holds what a validation looks at closely.
"""

# Of TensorBoard's page Custom Scalars: by category, and there by chart, regular expressions of the tags that are shown.
LAYOUT = {
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

# Scalars that TensorBoard's page HParams shows beside each run.
COMPARED = ("val/loss", "val/bits_per_byte", "work/tokens_per_second")
