"""Facts about the training of an exported model. They come from its checkpoint and from the run of the checkpoint."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptmini.interop import Training


def training_of(checkpoint: Path, contents: dict) -> "Training":
    """Return facts about the training of a checkpoint. contents is the result of read_checkpoint."""
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
    """Return the name of the training text. Return None if the checkpoint's header does not name a prepared folder."""
    data = header.get("data")
    if not isinstance(data, dict):
        return None
    # A prepared folder is named TEXT-TOKENIZER-DIGEST.
    return Path(str(data.get("folder", ""))).name.rsplit("-", 2)[0] or None


def origin_in(header: dict) -> str | None:
    """Return the end of the path of the weights that a run started with. Return None if the weights were random."""
    origin = header.get("init_from")
    if not isinstance(origin, dict):
        return None
    # Keep base/2026-11-23_06-01-47/checkpoints/best.ckpt, without the folders above it.
    path = "/".join(Path(str(origin.get("path", ""))).parts[-4:])
    # The checkpoint may be untrusted, and the name is written into Markdown.
    return re.sub(r"[^\w./-]", "-", path) or None


def scalars_of_step(checkpoint: Path, step: int | None) -> dict[str, float]:
    """Return the finite scalars that a run logged at the step of the checkpoint.

    The result is empty if the checkpoint is not in the folder of a run.
    Raises UserError if the run's metrics.jsonl is damaged.
    """
    from gptmini.runs import curves_of, read_lines

    if step is None:
        return {}
    # Resolve the path, because runs/latest is a link.
    run = checkpoint.resolve().parent.parent
    scalars = {}
    for tag, points in curves_of(read_lines(run)).items():
        value = dict(points).get(step, math.nan)
        if math.isfinite(value):
            scalars[tag] = value
    return scalars
