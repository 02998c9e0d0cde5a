"""The loggers of a run, from their making to their end."""

import inspect
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.runs import Run
    from gptmini.training import GPTModule
    from gptmini.training.settings import Settings
    from gptmini.training.trainer import Logger


def build_loggers(settings: "Settings", run: "Run") -> "list[Logger]":
    """The logger of metrics.jsonl, which every run has, and those of a configuration.

    A partial is called with those values of the run that its parameters name.

    Weights & Biases takes an id, under which a resumed run continues the entry that it began, and MLflow a run_name.
    """
    from gptmini.training import MetricsLogger
    from gptmini.training.trainer import Logger

    offered = {
        "save_dir": str(run.folder),
        "id": run.identity.id,
        "run_name": f"{run.folder.parent.name}-{run.folder.name}",
    }
    loggers: list[Logger] = [MetricsLogger(run.folder)]
    for key, part in settings.make_loggers().items():
        logger = part
        if isinstance(part, partial):
            parameters = inspect.signature(part.func).parameters
            known = {
                name: value
                for name, value in offered.items()
                if name in parameters and name not in part.keywords
            }
            # A logger may be anybody's code, and can raise an error of any class.
            try:
                logger = part(**known)
            except Exception as error:
                raise UserError(f"logger.{key} cannot be made: {error}") from None
        if not isinstance(logger, Logger):
            raise UserError(f"logger.{key} must be a logger of Lightning's kind, got {logger!r}")
        loggers.append(logger)
    return loggers


def log_setup(
    loggers: "Sequence[Logger]",
    settings: "Settings",
    module: "GPTModule",
    run: "Run",
) -> None:
    """Write to every logger what the run is: its configuration, and where a logger takes tables its model and data.

    TensorBoard is also given what a resumed run has logged before, and a comparison by all that was typed for the run.

    Args:
        loggers: the loggers of the run.
        settings: of the run.
        module: the model with its tokens.
        run: the run, which has begun.
    """
    from gptmini.report.tables import comparison, config_table, data_card, model_table
    from gptmini.training import EventLogger
    from gptmini.training.loggers.logger import RunLogger

    plain = settings.stored
    for logger in loggers:
        if isinstance(logger, EventLogger):
            if run.resumed:
                logger.write_anew(run.lines)
            logger.log_layout()
            logger.log_comparison(*comparison(plain, module.store, module.model, run.overrides))
        if isinstance(logger, RunLogger):
            logger.log_table("setup/config", config_table(plain), 0)
            logger.log_table("setup/model", model_table(module.model), 0)
            logger.log_table("setup/data", data_card(module.store), 0)
        logger.log_hyperparams(plain)
        logger.save()


def finish(loggers: "Sequence[Logger]") -> None:
    """End the entry of each logger that keeps one for the whole process.

    Without that, Weights & Biases would add the next run of the process to the entry of this run.
    """
    for logger in loggers:
        end = getattr(getattr(logger, "experiment", None), "finish", None)
        if end is not None:
            end()
