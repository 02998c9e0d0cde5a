"""The whole run."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.configuration.building import build_settings
from gptmini.configuration.messages import advising_on_memory
from gptmini.configuration.overrides import Typed
from gptmini.configuration.stored import going_on
from gptmini.job.announcer import make_console, open_announcer, say_end
from gptmini.job.budget import Dial
from gptmini.job.fit import fit
from gptmini.job.launch import start_ranks
from gptmini.job.loggers import build_loggers, log_setup
from gptmini.job.progress import watching
from gptmini.job.result import TrainingResult, checkpoints_of, result_of
from gptmini.job.tokens import open_tokens
from gptmini.process import mute, started
from gptmini.training.settings import Settings
from gptmini.world import this_world

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gptmini.data import TokenStore
    from gptmini.runs import Run
    from gptmini.training.devices.ranks import Ranks


@advising_on_memory("lower trainer.batch_size or the model's sizes")
def train(config: "DictConfig", typed: Typed) -> TrainingResult | None:
    """Train as a configuration says, from the first step or from the step that a run has reached.

    The configuration is checked, and the tokens are prepared, before a run begins. Of several ranks, this is what the
    first one does. Where several devices are asked for and nothing has started their ranks, they are started here.

    Args:
        config: the composed configuration.
        typed: what was typed for it.

    Returns what came of the run; None where ranks were started, which have trained and told it.
    Raises UserError: a text that cannot be read, or a run that cannot go on. A value that does not fit raises an error
    of pydantic's or Hydra's, which commands.errors puts into one line. Raises RanksFailed: ranks were started, and one
    of them has ended otherwise than with 0.
    """
    from gptmini.training.devices.ranks import Ranks

    began = time.monotonic()
    folder = config.folder
    asked_to_go_on = config.resume is not None  # else by folder=, or a new run
    world = this_world()
    with Ranks(world) as ranks:
        config, typed = going_on(config, typed)
        settings = build_settings(config)
        started()
        if settings.trainer.n_ranks > world.size:
            start_ranks(settings.trainer, folder, typed)
            return None

        prepare_process(settings)
        from gptmini.runs import open_run

        root = settings.root
        place = open_run(config.resume, config.folder, runs_dir=root.runs_dir, name=root.name)
        with place as run:
            if run.is_complete(settings.trainer.max_steps, asked_to_go_on=asked_to_go_on):
                ranks.tell(None)
                return _say_complete(run, settings)
            return _train(ranks, run, config, typed, settings, began=began)


def _train(
    ranks: "Ranks",
    run: "Run",
    config: "DictConfig",
    typed: Typed,
    settings: Settings,
    *,
    began: float,
) -> TrainingResult:
    """Train a run whose folder is locked; began is when the command began, in seconds of time.monotonic."""
    loggers = build_loggers(config.logger, run)
    console = make_console(settings.root.console)
    chosen: Sequence[str] = ()
    with watching(console, topic="data") as watcher:
        if settings.root.budget is not None and config.resume is None:
            dialled = Dial(config, typed, settings, watcher, began=began).choose()
            settings, store, prepared_now, chosen = dialled
        else:
            store, prepared_now = open_tokens(config, typed, settings, run.state, watcher=watcher)
    from gptmini.training.assembling import assemble

    module, data = assemble(settings, store, run.state)

    # The run keeps the batch size that was found for its devices, so that a resumed run need not look for it.
    config.trainer.batch_size = module.settings.batch_size
    run.begin(stored_yaml(config), typed.in_all_starts())
    ranks.tell(plan_of(run, config, store))

    announcer = open_announcer(console, run, settings, loggers, typed)
    if chosen:
        announcer.say("budget", *chosen)
    log_setup(loggers, config, module, run)
    announcer.say_start(run, module, settings, prepared_now=prepared_now)
    loggers = [*loggers, announcer.console]
    trainer, ending = fit(ranks, settings, module, data, run, loggers, began=began)
    say_end(announcer, trainer, ending, module, settings, run, seconds=time.monotonic() - began)
    ending.pass_on()
    return result_of(trainer, ending, settings, run)


def plan_of(run: "Run", config: "DictConfig", store: "TokenStore") -> dict[str, Any]:
    """What the other ranks of a run are told of it once its folder is made."""
    from omegaconf import OmegaConf

    return {
        "config": OmegaConf.to_container(config),
        "folder": str(run.folder.absolute()),
        "tokens": str(store.folder.absolute()),
        "checkpoint": None if run.state is None else str(run.state.path.absolute()),
        "resumed": run.resumed,
    }


@advising_on_memory("lower trainer.batch_size or the model's sizes")
def follow() -> TrainingResult | None:
    """Train as another rank than the first, which decides what is trained, and speaks for all.

    Returns what came of the run; None where there was nothing to train.
    Raises UserError: what the first rank names is not there on this machine.
    """
    began = time.monotonic()
    from omegaconf import DictConfig, OmegaConf

    from gptmini.checkpoint.file import read_checkpoint
    from gptmini.checkpoint.training_state import TrainingState
    from gptmini.data import TokenStore
    from gptmini.runs import Run
    from gptmini.training.devices.ranks import Ranks

    with Ranks(this_world()) as ranks:
        plan = ranks.hear()
        mute(False)
        if plan is None:
            return None
        config = OmegaConf.create(plan["config"])
        assert isinstance(config, DictConfig)
        settings = build_settings(config)
        started()
        prepare_process(settings)

        state = None
        if plan["checkpoint"] is not None:
            path = Path(plan["checkpoint"])
            state = TrainingState.parse(read_checkpoint(path, is_checked=True), path)
        run = Run(Path(plan["folder"]), None, resumed=plan["resumed"], state=state)
        from gptmini.training.assembling import assemble

        module, data = assemble(settings, TokenStore(Path(plan["tokens"])), state)
        loggers = build_loggers(config.logger, run)
        trainer, ending = fit(ranks, settings, module, data, run, loggers, began=began)
        return result_of(trainer, ending, settings, run)


def prepare_process(settings: Settings) -> None:
    """Set what holds for the whole process: memory that is kept for reuse, threads, and how matrices are multiplied."""
    from gptmini.hardware import keep_freed_memory, use_tf32, use_threads

    keep_freed_memory()
    if settings.hardware.tf32:
        use_tf32()
    use_threads(settings.trainer.threads, n_processes=settings.trainer.devices_here)


def stored_yaml(config: "DictConfig") -> str:
    """The configuration in YAML as the run folder keeps it: without what says where the run lies."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.merge(config, {"resume": None, "folder": None}))


def _say_complete(run: "Run", settings: Settings) -> TrainingResult:
    """Say that a run has nothing left to train, and return what came of it."""
    from gptmini.job.say import as_argument, command_line, say
    from gptmini.training.assembling import restore_callbacks

    assert run.state is not None
    restore_callbacks(settings.callbacks, run.state)
    checkpoints = checkpoints_of(settings)
    if settings.root.console != "quiet":
        ended = (
            "is complete" if run.end is None or run.end.by is None else f"was ended by {run.end.by}"
        )
        say("done", f"{run.folder} {ended} at step {run.step}; trainer.max_steps= goes further")
        say("next", command_line("sample", as_argument(run.folder)))
    best = None if checkpoints is None else checkpoints.best
    return TrainingResult(folder=run.folder, steps=run.step, best=best)
