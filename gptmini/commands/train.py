"""Train a GPT: gptmini train [KEY=VALUE ...]; --help lists groups and keys."""

import sys
import time
from typing import TYPE_CHECKING

from gptmini.commands.compose import Typed
from gptmini.commands.fitting import (
    TrainingResult,
    checkpoints_of,
    fit,
    log_setup,
    make_console,
    open_announcer,
)
from gptmini.commands.initial import initial_model
from gptmini.commands.joining import orders_of
from gptmini.commands.resumed import going_on
from gptmini.commands.settings import Settings, build_loggers, build_settings
from gptmini.commands.start_up import started
from gptmini.commands.tokens import ProgressLine, open_tokens
from gptmini.launch import this_launch

# A wrong key or value is told before torch and Lightning are imported, which takes seconds.
if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from gptmini.checkpoint.training_state import TrainingState
    from gptmini.data import TokenStore
    from gptmini.training import GPTModule, TokenDataModule
    from gptmini.training.run import Run


def run_job(config: "DictConfig", typed: Typed) -> float | None:
    """Train as a job of Hydra, and exit as a signal that has stopped the run asks; return the best loss."""
    result = train(config, typed)
    if result.exit_code:
        sys.exit(result.exit_code)
    return None if result.best is None else result.best.loss


def train(config: "DictConfig", typed: Typed) -> TrainingResult:
    """Train as a configuration says, from the first step or from the step that a run has reached.

    The configuration is checked, and the tokens are prepared, before a run begins.

    Args:
        config: the composed configuration.
        typed: what was typed for it.

    Raises UserError: a text that cannot be read, or a run that cannot go on. A value that does not fit raises an error
    of pydantic's or Hydra's, which commands.errors puts into one line.
    """
    began = time.monotonic()
    config, typed = going_on(config, typed)
    settings = build_settings(config)
    started()
    prepare_process(settings)

    from gptmini.training.processes import all_processes
    from gptmini.training.run import open_run

    root = settings.root
    place = open_run(config.resume, config.folder, runs_dir=root.runs_dir, name=root.name)
    with all_processes(settings.trainer, this_launch()) as group, place as run:
        if run.is_complete(settings.trainer.max_steps):
            return _say_complete(run, settings)
        loggers = build_loggers(config.logger, run)
        console = make_console(root.console)
        store, prepared_now = _open_tokens(config, typed, settings, run, console)
        module, data = assemble(settings, store, run.state)

        # The run keeps the batch size that batch_size=auto found, so that a resumed run need not look for it.
        config.trainer.batch_size = module.settings.batch_size
        run.begin(stored_yaml(config), typed.in_all_starts())
        group.tell_orders(orders_of(run, config))

        announcer = open_announcer(console, run, settings, loggers, typed)
        log_setup(loggers, config, module, run.overrides)
        announcer.say_start(run, module, settings, prepared_now=prepared_now)
        return fit(group, settings, module, data, run, loggers, announcer, began=began)


def prepare_process(settings: Settings) -> None:
    """Set what holds for the whole process: memory that is kept for reuse, threads, and how matrices are multiplied."""
    from gptmini.hardware import keep_freed_memory, use_tf32, use_threads

    keep_freed_memory()
    if settings.hardware.tf32:
        use_tf32()
    use_threads(settings.trainer.threads, n_processes=settings.trainer.devices_here)


def _open_tokens(
    config: "DictConfig", typed: Typed, settings: Settings, run: "Run", console: "Console"
) -> "tuple[TokenStore, bool]":
    """Open or prepare the tokens of a run, and show how far that is; arguments and results are those of open_tokens."""
    from gptmini.data import Watcher

    def note(topic: str, text: str) -> None:
        console.print(f"{topic:8} {text}", markup=False)

    with ProgressLine(console) as line:
        watcher = Watcher(
            on_progress=line.show,
            on_note=lambda text: note("data", text),
            on_warning=lambda text: note("warning", text),
        )
        return open_tokens(config, typed, settings, run.state, watcher=watcher)


def assemble(
    settings: Settings, store: "TokenStore", state: "TrainingState | None"
) -> "tuple[GPTModule, TokenDataModule]":
    """The module and the batches of a run on the tokens of a text; callbacks get their state of a checkpoint.

    Raises UserError: the text is too short, the settings do not fit the text, or the state is that of another run.
    """
    from gptmini.tokenizer import from_dict
    from gptmini.training import trainer

    n_vocab = from_dict(store.tokenizer_state).n_vocab
    store.check_vocabulary(n_vocab)
    # A run without a step done begins again, with callbacks that have seen nothing.
    if state is not None and state.step > 0:
        trainer.restore_callbacks(settings.callbacks, state)

    init_from = settings.root.init_from
    return trainer.assemble(
        store,
        settings.model.with_vocab_size(n_vocab),
        settings.trainer,
        optimizer=settings.optimizer.build,
        schedule=settings.schedule,
        seed=settings.root.seed,
        compile=settings.hardware.compile,
        device=settings.hardware.device,
        precision=settings.hardware.precision,
        state=state,
        initial=initial_model(init_from) if state is None else None,
        origin=init_from,
        freeze=settings.root.frozen,
    )


def stored_yaml(config: "DictConfig") -> str:
    """The configuration in YAML as the run folder keeps it: without what says where the run lies."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.merge(config, {"resume": None, "folder": None}))


def _say_complete(run: "Run", settings: Settings) -> TrainingResult:
    """Say that a run has nothing left to train, and return what came of it."""
    from gptmini.commands.say import as_argument, command_line, say
    from gptmini.training.trainer import restore_callbacks

    assert run.state is not None
    restore_callbacks(settings.callbacks, run.state)
    checkpoints = checkpoints_of(settings)
    if settings.root.console != "quiet":
        say("done", f"{run.folder} is complete at step {run.step}; trainer.max_steps= goes further")
        say("next", command_line("sample", as_argument(run.folder)))
    best = None if checkpoints is None else checkpoints.best
    return TrainingResult(folder=run.folder, steps=run.step, best=best)
