"""What a training run says of itself when it begins, goes on, stops and ends."""

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Lightning takes seconds
    from gptmini.hardware import Hardware
    from gptmini.model.checkpoint import TrainingState
    from gptmini.training import ConsoleLogger, GPTModule
    from gptmini.training.checkpointing import Best
    from gptmini.training.run import Run
    from gptmini.training.stopping import Ending
    from gptmini.training.trainer import Trainer

CLONE = Path(__file__).resolve().parent.parent.parent  # where the package lies, of a clone or of an installation


class Announcer:
    """Says a topic at a time: a word of at most eight letters, then one line or several beside it."""

    def __init__(self, console: "ConsoleLogger") -> None:
        self.console = console  # which writes to train.log too

    def say(self, topic: str, *texts: str) -> None:
        """Write the topic beside the first text, and the other texts below."""
        for i, text in enumerate(texts):
            word = topic if i == 0 else ""
            self.console.say(f"{word:8} {text}")

    def say_start(
        self, run: "Run", module: "GPTModule", hardware: "Hardware", *, prepared_now: bool, runs_dir: str
    ) -> None:
        """Say what is trained, on what, from which step, and where it can be watched."""
        from gptmini.training.settings import micro_steps

        for note in run.notes:
            self.say("warning", note)

        store = module.store
        n_train = store.n_tokens("train")
        n_val = store.n_tokens("val")
        bytes_per_token = 1 / store.tokens_per_byte("train")
        self.say(
            "data",
            f"{store.folder}, {'prepared now' if prepared_now else 'prepared before'}",
            f"{n_train:,} tokens to train on, {n_val:,} held out; {bytes_per_token:.2f} bytes a token",
        )
        model = module.model
        self.say("model", f"{model.n_parameters:,} parameters, {model.flops_per_token / 1e6:.1f} MFLOP a token")
        self.say("machine", str(hardware))
        settings = module.settings
        n_micro_steps = micro_steps(settings.global_batch_size, settings.batch_size, settings.devices)
        if n_micro_steps * settings.devices > 1:
            each = f" on each of {settings.devices} devices" if settings.devices > 1 else ""
            plural = "s" if n_micro_steps > 1 else ""
            parts = f"{n_micro_steps} micro-step{plural} of {settings.batch_size}{each}"
            self.say("batch", f"{settings.global_batch_size} sequences a step, in {parts}")
        self.say("run", str(run.folder), f"watch it: tensorboard --logdir {runs_dir}")
        if run.resumed:
            self.say_resume(run.state, module)

    def say_resume(self, state: "TrainingState | None", module: "GPTModule") -> None:
        """Say from where the run goes on, and what a new number of steps does to the learning rate."""
        if state is None:
            self.say("resume", "nothing was saved yet: from the first step")
            return

        max_steps = module.settings.max_steps
        complete = state.step == max_steps and state.validated_step == state.step
        hint = "; it is complete, trainer.max_steps= goes further" if complete else ""
        self.say("resume", f"{state.path}, step {state.step} of {max_steps}{hint}")

        if state.max_steps != max_steps:
            before = module.peak_lr * module.schedule(state.step, max_steps=state.max_steps)
            now = module.peak_lr * module.schedule(state.step, max_steps=max_steps)
            change = f"the learning rate of the next step was {before:.3g}, is {now:.3g}"
            self.say("", f"max_steps was {state.max_steps}, is {max_steps}: {change}")

    def say_stop(self, ending: "Ending", step: int, run: "Run") -> None:
        """Say why the run stopped, what was kept of it, and how it goes on."""
        last = run.folder / "checkpoints" / "last.ckpt"
        if ending.saved:
            kept = f"saved as {last}" if last.exists() else "not saved, for want of callbacks.checkpoints"
        else:
            kept = f"{last} is the newest checkpoint" if last.exists() else "nothing was saved yet"
        self.say("stopped", f"by {ending.reason} at step {step}; {kept}")
        self.say("next", resuming(run))

    def say_done(self, trainer: "Trainer", run: "Run", *, n_steps: int, seconds: float) -> None:
        """Say how long the run took, and whether a callback such as Lightning's EarlyStopping ended it early."""
        from gptmini.training.monitoring.console import duration

        self.say("done", f"{n_steps} steps in {duration(seconds)}")
        if trainer.global_step < trainer.max_steps:
            reasons = [getattr(callback, "stopping_reason_message", None) for callback in trainer.callbacks]
            reason = next((" ".join(text.split()) for text in reasons if text), "a callback asked for it")
            self.say("early", f"at step {trainer.global_step} of {trainer.max_steps}: {reason}")
            self.say("", f"to go on: {resuming(run)}")

    def say_results(
        self,
        module: "GPTModule",
        *,
        best: "Best | None",
        keeps_best: bool,
        samples: Sequence[str],
        folder: Path,
    ) -> None:
        """Say how good the model became, step by step and at best, show samples, and name the commands that follow.

        keeps_best says whether the run saves its best checkpoint at all.
        """
        self.say("losses", *self.console.final_table())
        if best is not None:
            loss = f"val loss {best.loss:.4f}, {best.bits_per_byte:.4f} bits per byte"
            self.say("best", f"{loss}, step {best.step}")
        elif keeps_best:
            saved = module.evaluation is not None and math.isfinite(module.evaluation.loss)
            reason = "it could not be saved" if saved else "no validation loss was finite; try a lower optimizer.lr"
            self.say("best", f"none: {reason}")
        for text in samples:
            self.say("sample", *text.splitlines())
        self.say("next", *(command_line(name, str(folder)) for name in ("sample", "evaluate", "report")))


def resuming(run: "Run") -> str:
    """The command line that goes on with a run: callbacks and loggers of the user's own must be typed again."""
    own = [shlex.quote(override) for override in run.overrides if override.startswith(("+callbacks.", "+logger."))]
    return command_line("train", " ".join((f"resume={run.folder}", *own)))


def command_line(name: str, argument: str) -> str:
    """A command line of ours as this user would type it: by the scripts of a clone, or by the installed program."""
    if Path(sys.argv[0]).resolve() == CLONE / "scripts" / "train.py":
        return f"python scripts/{name}.py {argument}"
    return f"gptmini {name} {argument}"
