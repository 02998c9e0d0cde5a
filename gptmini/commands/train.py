"""Train a GPT: gptmini train [KEY=VALUE ...]; --help lists groups and keys."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gptmini.commands.automatic import asks_for_auto, job_of_auto
from gptmini.commands.configuration import key_typed, plain_tree
from gptmini.commands.errors import naming_keys, one_line_errors
from gptmini.commands.fitting import (
    TrainingResult,
    fit_and_announce,
    make_console,
    open_announcer,
    prepare_process,
)
from gptmini.commands.initial import initial_model, settle_origin
from gptmini.commands.joining import dismissing_others, orders_of, train_further
from gptmini.commands.launching import run_configured
from gptmini.commands.multirun import Outcome
from gptmini.commands.plan import Plan, build, check_configuration, check_text, open_loggers
from gptmini.commands.progress import ProgressLine
from gptmini.commands.start_up import started
from gptmini.commands.tokens import open_tokens
from gptmini.launch import this_launch

# A mistake in a key is told before torch and Lightning are imported, which takes seconds.
if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gptmini.training import GPTModule
    from gptmini.training.processes import Group
    from gptmini.training.trainer import Logger


def train(
    config: "DictConfig",
    overrides: Sequence[str] = (),
    label: str = "",
    config_dir: str | None = None,
) -> TrainingResult:
    """Train as a configuration says, from the first step or from the step that a resumed run has reached.

    The configuration is checked, and the tokens are prepared, before the run's folder is made.

    Args:
        config: a composed configuration, or that of the run to resume.
        overrides: what was typed, KEY=VALUE each. The run keeps them, and they tell compared runs apart.
        label: what tells a job of a sweep from the others; ends the name of the run's folder.
        config_dir: a folder of the user's own that adds options to the groups; a printed command names it too.

    Raises UserError: a value that does not fit, a text that cannot be read, or a run that cannot be resumed.
    """
    began = time.monotonic()
    plan = check_configuration(config)
    # The large imports are done: from here on there is garbage to collect, and work that a Ctrl-C may not cut off.
    started()
    prepare_process(plan)

    from gptmini.training.processes import all_processes

    with all_processes(plan.settings, this_launch()) as group:
        return _train_in(group, plan, config, overrides, label, config_dir, began=began)


def _train_in(
    group: "Group",
    plan: Plan,
    config: "DictConfig",
    overrides: Sequence[str],
    label: str,
    config_dir: str | None,
    *,
    began: float,
) -> TrainingResult:
    """Train as the first process of a group; the other arguments are those of train."""
    from gptmini.data import Watcher
    from gptmini.training.run import open_run

    console = make_console(config.console)
    is_auto = config.resume is None and asks_for_auto(overrides)
    with open_run(
        config.resume,
        runs_dir=config.runs_dir,
        name=config.name,
        label=label,
        job=job_of_auto(this_launch()) if is_auto else None,
    ) as run:
        # A resumed run writes into its own folder; only data_dir= leads elsewhere.
        folders = {"data_dir": config.data_dir}
        if not run.resumed:
            folders["runs_dir"] = config.runs_dir

        with ProgressLine(console) as line, naming_keys(**folders):
            watcher = Watcher(
                on_progress=line.show,
                on_note=lambda note: console.print(f"{'data':8} {note}", markup=False),
                on_warning=lambda note: console.print(f"{'warning':8} {note}", markup=False),
            )
            store, prepared_now = open_tokens(config, run.state, overrides, watcher=watcher)
        origin = settle_origin(config)
        initial = initial_model(origin) if run.state is None else None
        fitted = build(plan, store, run.state, initial=initial, origin=origin)

        # The run keeps the batch size that batch_size=auto found, so that a resumed run need not look for it.
        config.trainer.batch_size = fitted.module.settings.batch_size
        with naming_keys(**folders):
            run.begin(stored_yaml(config), without_resume(overrides))
        group.tell_orders(orders_of(run, config))

        announcer = open_announcer(console, run, plan, config_dir)
        loggers = open_loggers(plan, run, announcer)
        log_setup(loggers, config, fitted.module, run.overrides)
        for note in plan.notes:
            announcer.say("warning", note)
        announcer.say_start(
            run,
            fitted.module,
            plan.hardware,
            prepared_now=prepared_now,
        )
        return fit_and_announce(
            group,
            plan,
            fitted,
            run,
            loggers,
            announcer,
            began=began,
        )


def run_job(
    config: "DictConfig", overrides: Sequence[str], label: str, config_dir: str | None
) -> Outcome:
    """Train as a job of Hydra; arguments are those of train."""
    result = train(config, overrides, label, config_dir)
    best = result.best
    return Outcome(
        loss=None if best is None else best.loss,
        bits_per_byte=None if best is None else best.bits_per_byte,
        step=None if best is None else best.step,
        folder=str(result.folder),
        stopped_by=result.stopped_by,
        exit_code=result.exit_code,
    )


def check_job(config: "DictConfig") -> None:
    """Check the configuration of a job of a sweep, and that its text is there; UserError if something does not fit."""
    check_configuration(config)
    if config.resume is None:
        check_text(config)


def main(arguments: list[str] | None = None) -> None:
    """Train as a list of overrides says; None takes the overrides of the command line.

    A further process of a run takes its orders from the first process instead.
    """
    with one_line_errors():
        launch = this_launch()
    if launch.is_further:
        train_further(launch)
        return

    with one_line_errors(), dismissing_others(launch):
        run_configured("train", run_job, arguments=arguments, check=check_job)


def log_setup(
    loggers: "Sequence[Logger]",
    config: "DictConfig",
    module: "GPTModule",
    overrides: Sequence[str],
) -> None:
    """Write the configuration to every logger, and to TensorBoard also tables of the model, the data and the overrides.

    Args:
        loggers: the loggers of the run.
        config: the run's configuration.
        module: the model with its tokens.
        overrides: all that was typed for the run so far; the comparison of runs shows what the overrides changed.
    """
    from gptmini.report.tables import comparison, config_table, data_card, model_table
    from gptmini.training import EventLogger

    plain = plain_tree(config, resolve=True)
    plain["resume"] = None
    for logger in loggers:
        if isinstance(logger, EventLogger):
            logger.log_layout()
            logger.log_table("setup/config", config_table(plain), 0)
            logger.log_table("setup/model", model_table(module.model), 0)
            logger.log_table("setup/data", data_card(module.store), 0)
            logger.log_comparison(*comparison(plain, module.store, module.model, overrides))
        else:
            logger.log_hyperparams(plain)
        logger.save()


def stored_yaml(config: "DictConfig") -> str:
    """The configuration in YAML as the run folder keeps it: without the run or checkpoint that it resumes."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.merge(config, {"resume": None}))


def without_resume(overrides: Sequence[str]) -> list[str]:
    """The overrides that say what a run is, without resume=, which says where it goes on."""
    return [line for line in overrides if key_typed(line) != "resume"]
