"""Train from Python as the command gptmini train does, in a process that is the caller's."""

from collections.abc import Sequence

from gptmini.commands.errors import explain, ran_out_of_memory
from gptmini.commands.fitting import TrainingResult
from gptmini.commands.jobs import compose_checked
from gptmini.commands.quoting import in_hydras_grammar, is_sweep
from gptmini.commands.train import train
from gptmini.launch import this_launch
from gptmini.user_error import UserError


def train_from_python(overrides: Sequence[str]) -> TrainingResult:
    """Train for overrides as they would be typed; gptmini.train is this function.

    Args:
        overrides: KEY=VALUE or GROUP=NAME each.

    Raises UserError: a mistake, as in an override, a value or a text; or more than one device, for which Lightning
    would start further processes with the command line of the caller.
    """
    for override in overrides:
        if type(override) is not str:
            raise UserError(
                f"an override must be text, as in trainer.max_steps=50, got {override!r}"
            )

        if override.startswith("-"):
            raise UserError(
                f"gptmini.train takes settings as KEY=VALUE or GROUP=NAME, got {override}; "
                f"flags belong to the command gptmini train"
            )

    # Errors of Hydra and Lightning become a UserError too, so that a caller has one class to catch.
    try:
        return _train_in_grammar(in_hydras_grammar(overrides))
    except Exception as error:
        # What the system refuses, memory included, keeps its class. Some of Hydra's errors derive from OSError, and are
        # none of these.
        is_systems = isinstance(error, OSError) and type(error).__module__ == "builtins"
        mistake = explain(error)
        if (
            mistake is None
            or is_systems
            or isinstance(error, UserError)
            or ran_out_of_memory(error)
        ):
            raise
        raise UserError(" ".join(mistake.split())) from error


def _train_in_grammar(overrides: Sequence[str]) -> TrainingResult:
    """Train for overrides in Hydra's grammar, in a process that is the caller's."""
    for override in overrides:
        if is_sweep(override):
            raise UserError(
                f"{override} stands for several runs, and gptmini.train does one; "
                "call it for each value, or put quotation marks around a text with commas"
            )

    launch = this_launch()
    if launch.by is not None:
        raise UserError(
            f"gptmini.train trains in one process, and {launch.by} has started several; "
            "use the command gptmini train"
        )

    config = compose_checked("train", overrides)
    if config.trainer.devices not in (1, "auto"):
        raise UserError(
            f"trainer.devices must be 1 in gptmini.train, got {config.trainer.devices}; "
            "for several use the command gptmini train"
        )

    from gptmini.training.trainer import keeping_noise

    with keeping_noise():
        return train(config, overrides)
