"""The speed ladder of a preset: training speed with one lever at a time, then with all levers that helped."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import torch

from gptmini.training import GPTModule

from ..harness import Table
from .fits import experiment, fit
from .levers import Lever, best_of_each_kind, levers
from .setting import Setting


def measure_ladder(table: Table, setting: Setting, *, preset: str) -> None:
    """Add rows for a preset: with a smaller batch (the base), as configured, with two other seeds, and with each lever.

    A lever helps if it makes the base faster and changes its loss by no more than other seeds do. The last row uses
    the best helpful lever of each kind.
    """
    base = measure_fit(setting, "base", preset)
    if base is None:
        return
    measure_configured(setting, preset)

    losses = [base["loss"]]
    for seed in (2, 3):
        figures = measure_fit(setting, f"base, seed {seed}", preset, [f"seed={seed}"])
        if figures is not None:
            losses.append(figures["loss"])
    noise = max(losses) - min(losses)

    helped = []
    complete = True
    for lever in levers(setting.scale, preset):
        figures = measure_rung(setting, lever.name, preset, [lever], base)
        if figures is None:
            complete = False
            continue
        gain = figures["times_base"]
        is_equal = abs(figures["loss"] - base["loss"]) <= noise
        if is_equal and gain >= setting.scale.gain:
            helped.append((gain, lever))

    chosen = best_of_each_kind(helped)
    together = "all that helped together"
    if chosen:
        names = " + ".join(lever.name for lever in chosen)
        measure_rung(setting, f"{together} ({names})", preset, chosen, base)
    elif not complete:
        table.add(f"{together}: times the base's speed", None, status="some levers not measured")
    else:
        said = f"no lever gave {setting.scale.gain} times the speed"
        table.add(f"{together}: times the base's speed", 1.0, said=said)


def measure_configured(setting: Setting, preset: str) -> None:
    """Add rows for a preset with the batch of the experiment; a dry run keeps the small batch of the toy sizes."""
    whole_batch = []
    if not setting.dry:
        sequences = experiment(preset).trainer.global_batch_size
        whole_batch = [f"trainer.global_batch_size={sequences}"]
    has_goal = preset == "modern" and not setting.dry
    goal = "at least 490,000" if has_goal else ""
    figures = measure_fit(setting, "as configured", preset, whole_batch, goal)
    if figures is not None:
        what = "as configured: share of the maker's peak, in percent"
        goal = "at least 42" if has_goal else ""
        setting.table.add(what, 100 * figures["share_of_peak"], goal=goal)
        setting.table.add("as configured: peak memory in GB", figures["memory_gb"])


def measure_fit(
    setting: Setting, name: str, preset: str, overrides: Sequence[str] = (), goal: str = ""
) -> dict | None:
    """Add a row for the speed of a fit, and return its figures."""
    what = f"{name}: tokens a second"
    train = partial(fit, setting, preset, overrides)
    return setting.measure(what, "tokens_per_second", train, goal=goal)


def measure_rung(
    setting: Setting, name: str, preset: str, chosen: Sequence[Lever], base: dict
) -> dict | None:
    """Add a row for a fit with some levers, and return its figures."""
    what = f"{name}: times the base's speed"
    return setting.measure(what, "times_base", partial(rung, setting, preset, chosen, base))


def rung(setting: Setting, preset: str, chosen: Sequence[Lever], base: dict) -> dict:
    """Train with some levers, and return the figures of the fit with its speed relative to the base.

    Args:
        setting: shared settings.
        preset: gpt2 or modern.
        chosen: levers to use together.
        base: figures of the base.
    """
    overrides = []
    for lever in chosen:
        overrides += lever.overrides

    def adapt(module: GPTModule) -> None:
        for lever in chosen:
            if lever.adapt is not None:
                lever.adapt(module)

    with ExitStack() as pulled:
        # The key of torch's cache of compiled code does not include the attention backend. A tag separates the rungs.
        tag = "+".join(lever.name for lever in chosen)
        pulled.enter_context(torch.compiler.config.patch(cache_key_tag=tag))
        for lever in chosen:
            pulled.enter_context(lever.around())
        figures = fit(setting, preset, overrides, adapt=adapt)

    return {"times_base": figures["tokens_per_second"] / base["tokens_per_second"], **figures}
