"""The training speed of a preset: with a small batch, with other micro-batches, and as configured."""

from collections.abc import Sequence

from ..harness import Table
from .fits import experiment, fit
from .setting import Setting


def measure_ladder(table: Table, setting: Setting, *, preset: str) -> None:
    """Add rows for a preset: with a smaller batch (the base), as configured, and with each micro-batch."""
    base = measure_fit(setting, "base", preset)
    if base is None:
        return
    measure_configured(setting, preset)
    for size in setting.scale.batch_sizes:
        measure_fit(
            setting, f"micro-batch {size}", preset, [f"trainer.batch_size={size}"], base=base
        )


def measure_configured(setting: Setting, preset: str) -> None:
    """Add rows for a preset with the batch of the experiment; a dry run keeps the small batch of the toy sizes."""
    whole_batch = []
    if not setting.dry:
        sequences = experiment(preset).trainer.global_batch_size
        whole_batch = [f"trainer.global_batch_size={sequences}"]
    has_goal = preset == "modern" and not setting.dry
    goal = "at least 490,000" if has_goal else ""
    figures = measure_fit(setting, "as configured", preset, whole_batch, goal=goal)
    if figures is not None:
        what = "as configured: share of the maker's peak, in percent"
        goal = "at least 42" if has_goal else ""
        setting.table.add(what, 100 * figures["share_of_peak"], goal=goal)
        setting.table.add("as configured: peak memory in GB", figures["memory_gb"])


def measure_fit(
    setting: Setting,
    name: str,
    preset: str,
    overrides: Sequence[str] = (),
    *,
    goal: str = "",
    base: dict | None = None,
) -> dict | None:
    """Add a row for the speed of a fit, relative to the base if it is given; return the figures of the fit."""

    def train() -> dict:
        figures = fit(setting, preset, overrides)
        speed = figures["tokens_per_second"]
        return figures | ({"times_base": speed / base["tokens_per_second"]} if base else {})

    if base is not None:
        return setting.measure(f"{name}: times the base's speed", "times_base", train)
    return setting.measure(f"{name}: tokens a second", "tokens_per_second", train, goal=goal)
