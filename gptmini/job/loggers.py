"""Build the loggers of a run, log its setup, and close them."""

import inspect
from collections.abc import Sequence
from functools import partial

from gptmini.configuration.building import build_component
from gptmini.report import comparison, config_table, data_card, model_table
from gptmini.runs import Run
from gptmini.system.errors import UserError
from gptmini.training import EventLogger, GPTModule, Logger, MetricsLogger, RunLogger, Settings


def build_loggers(settings: Settings, run: Run) -> list[Logger]:
    """Return the logger of metrics.jsonl, which every run has, and the loggers of the configuration.

    A functools.partial is called with those values of the run that its signature has as parameters: save_dir, id
    (Weights & Biases continues the entry of a resumed run) or run_name (MLflow).

    Raises UserError if a logger cannot be built or is not a Lightning logger.
    """
    offered = {
        "save_dir": str(run.folder),
        "id": run.identity.id,
        "run_name": f"{run.folder.parent.name}-{run.folder.name}",
    }
    loggers: list[Logger] = [MetricsLogger(run.folder)]
    for component in settings.loggers:
        logger = build_component(component)
        if isinstance(logger, partial):
            parameters = inspect.signature(logger.func).parameters
            accepted = {
                name: value
                for name, value in offered.items()
                if name in parameters and name not in logger.keywords
            }
            # The logger may be user code, which can raise any error.
            try:
                logger = logger(**accepted)
            except Exception as error:
                raise UserError(f"cannot build {component.key}: {error}") from None
        if not isinstance(logger, Logger):
            raise UserError(f"{component.key} must be a Lightning logger, got {logger!r}")
        loggers.append(logger)
    return loggers


def log_setup(loggers: Sequence[Logger], settings: Settings, module: GPTModule, run: Run) -> None:
    """Log the configuration to every logger, and tables of the setup to loggers that support tables.

    TensorBoard also gets the earlier points of a resumed run, and a table that compares runs by their overrides.
    """
    plain = settings.stored
    tables = {
        "setup/config": config_table(plain),
        "setup/model": model_table(module.model),
        "setup/data": data_card(module.store),
    }
    # A resumed run logs only tables that have changed.
    logged = {tag: line[tag] for line in run.lines for tag in tables if tag in line}
    changed = {tag: rows for tag, rows in tables.items() if rows != logged.get(tag)}

    for logger in loggers:
        if isinstance(logger, EventLogger):
            if run.resumed:
                logger.rewrite(run.lines)
            logger.log_layout()
            logger.log_comparison(*comparison(plain, module.store, module.model, run.overrides))
        if isinstance(logger, RunLogger):
            for tag, rows in changed.items():
                logger.log_entry(tag, rows, run.step)
        logger.log_hyperparams(plain)
        logger.save()


def finish(loggers: Sequence[Logger]) -> None:
    """Call finish() on the experiment of each logger, if the experiment has this method.

    Otherwise Weights & Biases would add the next run of this process to the entry of this run.
    """
    for logger in loggers:
        end = getattr(getattr(logger, "experiment", None), "finish", None)
        if end is not None:
            end()
