"""Train from Python as the command gptmini train does, in a process that is the caller's."""

from collections.abc import Sequence

from gptmini.configuration.compose import compose
from gptmini.configuration.messages import explain, ran_out_of_memory
from gptmini.job.result import TrainingResult
from gptmini.job.train import train
from gptmini.user_error import UserError
from gptmini.world import this_world


def train_from_python(overrides: Sequence[str]) -> TrainingResult:
    """Train for overrides as they would be typed; gptmini.train is this function.

    Args:
        overrides: KEY=VALUE or GROUP=NAME each.

    Raises UserError: a mistake, as in an override, a value or a text; or more than one device, which needs the command.
    """
    # Errors of pydantic, Hydra and Lightning become a UserError too, so that a caller has one class to catch.
    try:
        return _train(overrides)
    except UserError:
        raise
    except Exception as error:
        # What the system refuses, memory included, keeps its class. Some of Hydra's errors derive from OSError.
        is_systems = isinstance(error, OSError) and type(error).__module__ == "builtins"
        mistake = explain(error)
        if mistake is None or is_systems or ran_out_of_memory(error):
            raise
        raise UserError(" ".join(mistake.split())) from error


def _train(overrides: Sequence[str]) -> TrainingResult:
    """Train for overrides, in a process that is the caller's."""
    for override in overrides:
        if not isinstance(override, str) or override.startswith("-"):
            raise UserError(
                f"gptmini.train takes settings as KEY=VALUE or GROUP=NAME, got {override!r}"
            )
    launcher = this_world().launcher
    if launcher is not None:
        raise UserError(
            f"gptmini.train trains in one process, and {launcher} has started several; use the command gptmini train"
        )
    composed = compose("train", overrides)
    devices = composed.value("trainer.devices")
    if devices not in (1, "auto"):
        raise UserError(
            f"trainer.devices must be 1 in gptmini.train, got {devices}; for several use the command "
            "gptmini train"
        )

    from gptmini.training.quiet import keeping_noise

    with keeping_noise():
        result = train(composed)
    assert result is not None  # as for every run of one device
    return result
