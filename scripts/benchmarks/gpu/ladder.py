"""The ladder of a preset: its training speed with one lever at a time, then with all levers that helped."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import torch

from gptmini.training import GPTModule

from .fits import experiment, fit
from .levers import Lever, best_of_each_kind, levers
from .setting import Setting


def measure_ladder(setting: Setting, preset: str) -> None:
    """Add rows for a preset with a smaller batch (the base), as configured, with two other seeds, and lever by lever.

    A lever helped if it made the base faster and moved the base's loss by no more than seeds do. The last row has the
    best lever of each kind among those that helped.
    """
    part = f"ladder_{preset}"
    table = setting.table
    base = table.measure(
        part,
        "base",
        partial(fit, setting, preset),
        expected=setting.expected_seconds,
    )
    if base is None:
        return

    # A dry run leaves the experiment's own batch out, which is too large for a toy.
    whole_batch = []
    if not setting.dry:
        sequences = experiment(preset).trainer.global_batch_size
        whole_batch = [f"trainer.global_batch_size={sequences}"]
    table.measure(part, "as configured", partial(fit, setting, preset, whole_batch))

    noise = spread_of_seeds(setting, preset, base)
    helped = []
    for lever in levers(setting.scale, preset):
        figures = table.measure(part, lever.name, partial(rung, setting, preset, [lever], base))
        if figures is None:
            continue
        gain = figures["times_base"]
        is_equal = abs(figures["loss"] - base["loss"]) <= noise
        if is_equal and gain >= setting.scale.gain:
            helped.append((gain, lever))

    chosen = best_of_each_kind(helped)
    if chosen:
        together = partial(rung, setting, preset, chosen, base)
        table.measure(part, " + ".join(lever.name for lever in chosen), together)
    else:
        said = f"no lever gave {setting.scale.gain} times the speed"
        table.add(part, "all that helped together", "measured", said=said)


def spread_of_seeds(setting: Setting, preset: str, base: dict) -> float:
    """Train the base with two other seeds, and return how far apart the losses of all three are."""
    losses = [base["loss"]]
    for seed in (2, 3):
        figures = setting.table.measure(
            f"ladder_{preset}",
            f"base, seed {seed}",
            partial(fit, setting, preset, [f"seed={seed}"]),
        )
        if figures is not None:
            losses.append(figures["loss"])
    return max(losses) - min(losses)


def rung(setting: Setting, preset: str, chosen: Sequence[Lever], base: dict) -> dict:
    """Train with some levers pulled, and return the figures of the fit beside the base's.

    Args:
        setting: what all parts share.
        preset: gpt2 or modern.
        chosen: the levers to pull together.
        base: the figures of the base.
    """
    overrides = []
    for lever in chosen:
        overrides += lever.overrides

    def adapt(module: GPTModule) -> None:
        for lever in chosen:
            if lever.adapt is not None:
                lever.adapt(module)

    with ExitStack() as pulled:
        # The key of torch's cache of compiled code leaves out which attention was asked for. A tag keeps rungs apart.
        tag = "+".join(lever.name for lever in chosen)
        pulled.enter_context(torch.compiler.config.patch(cache_key_tag=tag))
        for lever in chosen:
            pulled.enter_context(lever.around())
        figures = fit(setting, preset, overrides, adapt=adapt)

    return {"times_base": figures["tokens_per_second"] / base["tokens_per_second"], **figures}
