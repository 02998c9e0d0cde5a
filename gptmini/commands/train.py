"""Train a GPT: gptmini train [KEY=VALUE ...]; --help lists groups and keys."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.commands.announcements import Announcer
from gptmini.commands.automatic import asks_for_auto, job_of_auto, may_requeue, requeue
from gptmini.commands.configuration import key_typed, plain_tree
from gptmini.commands.errors import MISUSE, explain, naming_keys, one_line_errors, print_mistake
from gptmini.commands.initial import initial_model, settle_origin
from gptmini.commands.launching import run_configured
from gptmini.commands.multirun import Outcome
from gptmini.commands.plan import (
    Fitted,
    Plan,
    build,
    check_configuration,
    check_text,
    open_loggers,
)
from gptmini.commands.progress import ProgressLine
from gptmini.commands.start_up import started, starting_up
from gptmini.commands.tokens import open_tokens
from gptmini.launch import Launch, this_launch

# A mistake in a key is told before torch and Lightning are imported, which takes seconds.
if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from gptmini.training import GPTModule
    from gptmini.training.checkpointing import Best
    from gptmini.training.meeting import Orders
    from gptmini.training.processes import Group
    from gptmini.training.run import Run
    from gptmini.training.trainer import Logger


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The outcome of a run."""

    folder: Path  # the run's folder
    steps: int  # optimizer steps done in all, those before a resumption included
    best: "Best | None"  # the validation with the lowest loss; None if none was saved
    stopped_by: str | None = None  # a signal's name or the time limit; None if nothing stopped it
    exit_code: int = 0  # the command's: 128 + the number of a signal that stopped the run


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
            [*loggers, announcer.console],
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


@contextmanager
def dismissing_others(launch: Launch) -> Iterator[None]:
    """Let the processes that torchrun or srun has started end too, if the block ends before there is a run."""
    if not launch.starts_all:
        yield
        return

    from gptmini.training.processes import meet

    meeting = meet(launch)
    try:
        yield
    finally:
        meeting.dismiss()


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


def prepare_process(plan: Plan) -> None:
    """Set what holds for the whole process: memory that is kept for reuse, threads, and how matrices are multiplied."""
    from gptmini.hardware import keep_freed_memory, use_tf32, use_threads

    keep_freed_memory()
    if plan.hardware.tf32:
        use_tf32()
    use_threads(plan.settings.threads, n_processes=plan.settings.devices_here)


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


def train_further(launch: Launch) -> None:
    """Train as a further process of a run, which the first process has checked, named and written down.

    This process prints nothing, unless it has a bug: the first process tells the user what goes wrong here.
    """
    with one_line_errors(), starting_up():
        from omegaconf import DictConfig, OmegaConf

        from gptmini.training.meeting import LostStore, join_meeting
        from gptmini.training.processes import Group, leave_group
        from gptmini.training.stopping import LOSS

        try:
            meeting = join_meeting(launch)
            orders = meeting.hear_orders()
        except LostStore:
            sys.exit(LOSS)
        if orders is None:
            return

        sys.path.extend(folder for folder in orders.path if folder not in sys.path)
        try:
            config = OmegaConf.create(orders.config)
            assert isinstance(config, DictConfig)
            code = _follow(Group(launch, meeting), orders, config)
        except BaseException as error:
            meeting.tell_failure(error)
            if explain(error) is not None:
                sys.exit(MISUSE)
            raise
        finally:
            leave_group()
    sys.exit(code)


def _follow(group: "Group", orders: "Orders", config: "DictConfig") -> int:
    """Train with the configuration, the folder and the checkpoint of the first process; return the exit code."""
    began = time.monotonic()
    plan = check_configuration(config)
    started()
    prepare_process(plan)

    from gptmini.training.run import SharedRun

    checkpoint = None if orders.checkpoint is None else Path(orders.checkpoint)
    with SharedRun(Path(orders.folder), checkpoint, resumed=orders.resumed) as run:
        store, _ = open_tokens(config, run.state, orders.overrides)
        origin = settle_origin(config)
        initial = initial_model(origin) if run.state is None else None
        fitted = build(plan, store, run.state, initial=initial, origin=origin)
        run.begin(orders.config, orders.overrides)

        announcer = open_announcer(make_console("quiet"), run, plan, None)
        loggers = open_loggers(plan, run, announcer)
        result = fit_and_announce(
            group,
            plan,
            fitted,
            run,
            [*loggers, announcer.console],
            announcer,
            began=began,
        )
    return result.exit_code


def orders_of(run: "Run", config: "DictConfig") -> "Orders":
    """What the further processes of a run must know of it once its folder is made."""
    from omegaconf import OmegaConf

    from gptmini.training.meeting import Orders

    return Orders(
        config=OmegaConf.to_yaml(config),
        overrides=list(run.overrides),
        folder=str(run.folder),
        checkpoint=None if run.state is None else str(run.state.path),
        resumed=run.resumed,
        path=list(sys.path),
    )


def fit_and_announce(
    group: "Group",
    plan: Plan,
    fitted: Fitted,
    run: "Run",
    loggers: "Sequence[Logger]",
    announcer: Announcer,
    *,
    began: float,
) -> TrainingResult:
    """Train until the last step, or until a signal, the time limit or a callback ends the run; say how it ended.

    Args:
        group: the processes of the run, which begin to train together.
        plan: the checked configuration.
        fitted: the plan built for the run's text.
        run: the run, whose folder exists.
        loggers: all loggers of the run, the one of the console included.
        announcer: says how the run ended.
        began: when the command began, in seconds of time.monotonic. The time limit counts from then.
    """
    from gptmini.training import (
        ContentionNotice,
        RunCheckpoints,
        Samples,
        Stopping,
        build_trainer,
    )
    from gptmini.training.stopping import LOSS

    seconds_left = plan.max_seconds
    if seconds_left is not None:
        seconds_left -= time.monotonic() - began
    stopping = Stopping(seconds_left, plan.settings.max_bad_steps, group.meeting)
    trainer = build_trainer(
        fitted.module.settings,
        run.folder,
        device=plan.hardware.device,
        precision=plan.hardware.precision,
        callbacks=[*fitted.callbacks, ContentionNotice(), stopping],
        loggers=loggers,
        state=run.state,
        begins_trained=fitted.module.origin is not None,
        launch=group.launch,
    )
    group.come_together(plan.hardware.device, plan.settings.timeout)

    try:
        ending = stopping.fit_until_stopped(trainer, fitted.module, fitted.data)
    finally:
        finish_loggers(loggers)

    checkpoints = _first(fitted.callbacks, RunCheckpoints)
    best = None if checkpoints is None else checkpoints.best
    if ending.reason is not None:
        announcer.say_stop(ending, trainer.global_step, run)
        if group.launch.is_further and ending.code == LOSS and ending.speaks:
            last = run.folder / "checkpoints" / "last.ckpt"
            print_mistake(f"the run ended by {ending.reason}; go on from {last}")
    else:
        announcer.say_done(
            trainer,
            run,
            n_steps=trainer.global_step - run.step,
            seconds=time.monotonic() - began,
        )
        samples = _first(fitted.callbacks, Samples)
        announcer.say_results(
            fitted.module,
            best=best,
            keeps_best=checkpoints is not None,
            samples=[] if samples is None else samples.texts,
            folder=run.folder,
        )

    if ending.saved and may_requeue(group.launch, run.folder, ending.reason):
        announcer.say("requeue", requeue(group.launch))
    stopping.pass_on()
    return TrainingResult(
        folder=run.folder,
        steps=trainer.global_step,
        best=best,
        stopped_by=ending.reason,
        exit_code=ending.code,
    )


def finish_loggers(loggers: "Sequence[Logger]") -> None:
    """End the entry of each logger that keeps one for the whole process.

    Without that, Weights & Biases would add the next run of the process to the entry of this run.
    """
    for logger in loggers:
        experiment = getattr(logger, "experiment", None)
        end = getattr(experiment, "finish", None)
        if end is not None:
            end()


def make_console(kind: str) -> "Console":
    """The console of a run; kind is auto, lines or quiet. A further process takes quiet."""
    from gptmini.training.monitoring.console import LastingConsole

    return LastingConsole(
        quiet=kind == "quiet",
        force_terminal=False if kind == "lines" else None,
        soft_wrap=True,
        highlight=False,
    )


def open_announcer(console: "Console", run: "Run", plan: Plan, config_dir: str | None) -> Announcer:
    """The announcer of a run that has begun, which writes to the console and to the run's train.log."""
    from rich.console import Console

    from gptmini.training.monitoring.console import ConsoleLogger, past_validations

    log = Console(file=run.log, soft_wrap=True, highlight=False)
    console_logger = ConsoleLogger(
        console,
        log,
        plan.settings.max_steps,
        past_validations(run.curves),
        plan.settings.validation_due,
    )
    return Announcer(console_logger, config_dir)


def stored_yaml(config: "DictConfig") -> str:
    """The configuration in YAML as the run folder keeps it: without the run or checkpoint that it resumes."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.merge(config, {"resume": None}))


def without_resume(overrides: Sequence[str]) -> list[str]:
    """The overrides that say what a run is, without resume=, which says where it goes on."""
    return [line for line in overrides if key_typed(line) != "resume"]


def _first(callbacks: Sequence[Any], kind: type) -> Any:
    """The first callback of a kind, or None."""
    return next((callback for callback in callbacks if isinstance(callback, kind)), None)
