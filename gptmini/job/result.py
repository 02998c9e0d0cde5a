"""How a run ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.training.settings import Settings

if TYPE_CHECKING:
    from gptmini.runs import Run, RunState
    from gptmini.training.callbacks.checkpoints import Best
    from gptmini.training.stopping import Ending
    from gptmini.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The outcome of a run."""

    folder: Path  # the run's folder
    steps: int  # optimizer steps done in all, those before a resumption included
    best: "Best | None"  # the validation with the lowest loss; None if none was saved
    stopped_by: str | None = None  # a signal's name or the time limit; None if nothing stopped it
    exit_code: int = 0  # the command's: 128 + the number of a signal that stopped the run


def result_of(
    trainer: "Trainer", ending: "Ending", settings: Settings, run: "Run"
) -> TrainingResult:
    """What came of a run that has ended."""
    checkpoints = checkpoints_of(settings)
    return TrainingResult(
        folder=run.folder,
        steps=trainer.global_step,
        best=None if checkpoints is None else checkpoints.best,
        stopped_by=ending.stopped_by,
        exit_code=ending.code,
    )


def end_of(trainer: "Trainer", ending: "Ending") -> "RunState":
    """How a run ended that no error ended, for the file state in its folder."""
    from gptmini.runs import RunState

    step = trainer.global_step
    if ending.stopped_by is not None:
        return RunState(state="stopped", step=step, by=ending.stopped_by)
    if step >= trainer.max_steps:
        return RunState(state="done", step=step)
    name, _ = ended_by(trainer)
    if name == "Pruning":
        return RunState(state="pruned", step=step)
    return RunState(state="ended", step=step, by=name)


def checkpoints_of(settings: Settings) -> Any:
    """The callback that writes a run's checkpoints; None if there is none."""
    from gptmini.training import RunCheckpoints

    found = (part for part in settings.callbacks if isinstance(part, RunCheckpoints))
    return next(found, None)


def ended_by(trainer: "Trainer") -> tuple[str, str]:
    """The callback that has ended a run early, by its name, and its reason, as Lightning's EarlyStopping gives one."""
    # Lightning sets this attribute from another class, where the type checker does not look.
    for callback in trainer.callbacks:  # pyrefly: ignore[missing-attribute]
        text = getattr(callback, "stopping_reason_message", None)
        if text:
            return type(callback).__name__, " ".join(text.split())
    return "a callback", "a callback asked for it"
