"""Train from Python as gptmini train does, but in the calling process."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gptmini.configuration.compose import compose
from gptmini.configuration.messages import explain
from gptmini.configuration.stored import settings_of
from gptmini.configuration.texts import texts_as_overrides
from gptmini.system.errors import UserError, ran_out_of_memory
from gptmini.system.world import this_world
from gptmini.training import Ranks, restore_logging

if TYPE_CHECKING:
    from gptmini.job.result import TrainingResult


def train_from_python(overrides: Sequence[str]) -> "TrainingResult":
    """Train with command-line overrides, each written as KEY=VALUE or GROUP=NAME.

    Raises UserError if an override, a value or the text is wrong, or if more than one device is requested.
    """
    # Turn errors of pydantic, Hydra and Lightning into UserError, so that callers catch one class.
    try:
        return _train(overrides)
    except UserError:
        raise
    except Exception as error:
        # System and out-of-memory errors keep their class. Some classes of Hydra also derive from OSError, but their
        # errors become UserError.
        is_system_error = isinstance(error, OSError) and type(error).__module__ == "builtins"
        mistake = explain(error)
        if mistake is None or is_system_error or ran_out_of_memory(error):
            raise
        raise UserError(" ".join(mistake.split())) from error


def _train(overrides: Sequence[str]) -> "TrainingResult":
    for override in overrides:
        if not isinstance(override, str) or override.startswith("-"):
            raise UserError(
                f"gptmini.train requires overrides as KEY=VALUE or GROUP=NAME, got {override!r}"
            )
    world = this_world()
    if world.launcher is not None:
        raise UserError(
            f"gptmini.train trains in one process, but {world.launcher} started several processes; "
            "run the command gptmini train"
        )
    settings, request = settings_of(compose("train", texts_as_overrides(overrides)))
    devices = settings.trainer.devices_here
    if devices > 1:
        raise UserError(
            f"trainer.devices must be 1 in gptmini.train, got {devices}; for more, run the command gptmini train"
        )

    with restore_logging(), Ranks(world) as ranks:
        # Import torch and Lightning, which takes seconds, only after all checks.
        from gptmini.job.train import train

        result = train(ranks, settings, request)
    assert result is not None  # train returns None only if it launches ranks
    return result
