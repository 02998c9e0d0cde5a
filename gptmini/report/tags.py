"""The charts of a run's curves in TensorBoard and in reports, by tag.

TensorBoard orders groups of tags by name. Groups of scalars are train, val, weights and work. Groups of images and
texts are samples, setup and zoom. The group zoom has the details of a validation.
"""

# Layout of TensorBoard's Custom Scalars page: regular expressions of tags, by category and chart.
LAYOUT = {
    "Is it learning?": {
        "loss, nats per token": ["^train/loss$", "^val/loss$"],
        "bits per byte": ["^val/bits_per_byte$"],
        "val loss minus train loss": ["^val/gap$"],
        "copied from the training text": ["^val/copied$"],
    },
    "Is it about to diverge?": {
        "gradient norm before clipping": ["^weights/grad_norm$"],
        "fraction of clipped steps": ["^weights/clipped$"],
        "learning rate": ["^train/lr/"],
        "update-to-weight ratio": ["^weights/update_ratio/"],
        "weight norm": ["^weights/norm/"],
        "skipped steps (loss or gradient not finite)": ["^train/bad_steps$"],
    },
    "How fast is it?": {
        "tokens per second": ["^work/tokens_per_second$"],
        "milliseconds per step": ["^work/ms/"],
        "peak memory, GB": ["^work/memory_gb$"],
        "model FLOP utilisation": ["^work/mfu$"],
    },
    "How far along is it?": {
        "tokens seen": ["^train/tokens$"],
        "passes over the data": ["^train/passes$"],
    },
}

# Scalars that TensorBoard's HParams page shows for each run.
COMPARED = ("val/loss", "val/bits_per_byte", "work/tokens_per_second")
