"""What an exported folder tells of the training of its model, from the checkpoint and the run around it."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptmini.interop import Training


def training_of(checkpoint: Path, contents: dict) -> "Training":
    """What the folder of a run tells of the training of a checkpoint, whose contents read_checkpoint has read."""
    from gptmini.interop import Training

    step = contents.get("global_step")
    header = contents["gptmini"]
    scalars = scalars_of_step(checkpoint, step)
    n_tokens = scalars.get("train/tokens")
    return Training(
        text=text_in(header),
        version=header.get("version"),
        step=step,
        n_tokens=None if n_tokens is None else round(n_tokens),
        val_loss=scalars.get("val/loss"),
        bits_per_byte=scalars.get("val/bits_per_byte"),
        init_from=origin_in(header),
    )


def text_in(header: dict) -> str | None:
    """The name of the text that a checkpoint's model was trained on, if its header names the prepared folder."""
    data = header.get("data")
    if not isinstance(data, dict):
        return None
    # The name of a prepared folder is that of the text, of the tokenizer, and a digest.
    return Path(str(data.get("folder", ""))).name.rsplit("-", 2)[0] or None


def origin_in(header: dict) -> str | None:
    """The weights that a run began with, by the end of their path, if its checkpoint names them."""
    origin = header.get("init_from")
    if not isinstance(origin, dict):
        return None
    # As in base/2026-11-23_06-01-47/checkpoints/best.ckpt, without the folders of the machine above.
    path = "/".join(Path(str(origin.get("path", ""))).parts[-4:])
    # Another person may have written the checkpoint, and the name goes into Markdown.
    return re.sub(r"[^\w./-]", "-", path) or None


def scalars_of_step(checkpoint: Path, step: int | None) -> dict[str, float]:
    """The finite scalars that a run logged at the step of a checkpoint; empty for a checkpoint without its run.

    Raises UserError: the run's metrics.jsonl is damaged.
    """
    from gptmini.runs import curves_of, read_lines

    if step is None:
        return {}
    # Resolved, because the folder of runs/latest is a link.
    run = checkpoint.resolve().parent.parent
    scalars = {}
    for tag, points in curves_of(read_lines(run)).items():
        value = dict(points).get(step, math.nan)
        if math.isfinite(value):
            scalars[tag] = value
    return scalars
