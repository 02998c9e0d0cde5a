"""What a training run says of itself when it begins, goes on, stops and ends."""

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.configuration.keys import parts_of_users
from gptmini.configuration.overrides import as_override
from gptmini.job.result import checkpoints_of, ended_by
from gptmini.job.say import as_argument, command_line, lines_of
from gptmini.runs import has_checkpoint
from gptmini.training.settings import Settings
from gptmini.user_error import UserError

if TYPE_CHECKING:  # importing Lightning takes seconds
    from rich.console import Console

    from gptmini.checkpoint.training_state import TrainingState
    from gptmini.configuration.overrides import Typed
    from gptmini.data import TokenStore
    from gptmini.model import GPT, GPTConfig
    from gptmini.runs import Run
    from gptmini.training import ConsoleLogger, GPTModule, TrainerSettings
    from gptmini.training.callbacks.checkpoints import Best
    from gptmini.training.stopping import Ending
    from gptmini.training.trainer import Logger, Trainer

# Passes over a text up to which a repeated text is worth nearly as much as a new one: Muennighoff et al. 2023,
# "Scaling Data-Constrained Language Models", abstract.
MANY_PASSES = 4


class Announcer:
    """Writes lines about a run: a topic, which is a word of at most eight letters, and one or more texts beside it."""

    def __init__(
        self, console: "ConsoleLogger", typed: "Typed", loggers: "Sequence[Logger]"
    ) -> None:
        from gptmini.training import EventLogger

        self.console = console  # prints each line, and writes the line to train.log too
        self.typed = typed  # for the run this time
        # Whether there is something that TensorBoard can show.
        self.has_events = any(isinstance(logger, EventLogger) for logger in loggers)

    def say(self, topic: str, *texts: str) -> None:
        """Write the topic beside the first text, and the other texts in lines below."""
        for line in lines_of(topic, *texts):
            self.console.say(line)

    def say_start(
        self,
        run: "Run",
        module: "GPTModule",
        settings: Settings,
        *,
        prepared_now: bool,
    ) -> None:
        """Say what is trained, on what data and machine, in which folder, and for a resumed run from which step.

        Args:
            run: the run, whose folder exists.
            module: the model with its tokens and settings.
            settings: the parts of the configuration.
            prepared_now: whether the tokens were written by this command, not by an earlier one.
        """
        for note in (*settings.notes, *run.notes):
            self.say("warning", note)

        model = module.model
        self._say_data(module.store, prepared_now=prepared_now)
        self._say_passes(module)
        work = with_prefix(model.flops_per_token, "FLOP")
        self.say("model", f"{model.n_parameters:,} parameters, {work} a token")
        self._say_if_not_exportable(model.config)
        if module.origin is not None and run.state is None:
            step = module.origin["step"]
            of_step = "" if step is None else f", of step {step}"
            self.say("", f"begins with the weights of {module.origin['path']}{of_step}")
        self._say_frozen(model)
        self.say("machine", str(settings.hardware))
        self._say_batch(module.settings)
        self.say("run", str(run.folder))
        if self.has_events:
            self.say("", f"watch it: {watching(run.root or run.folder)}")

        if run.resumed:
            self.say_resume(run.state, module)

    def _say_if_not_exportable(self, config: "GPTConfig") -> None:
        """Say which setting keeps a model from being exported to other programs."""
        from gptmini.interop.architectures import choose_architecture

        try:
            choose_architecture(config)
        except UserError as error:
            self.say("", f"this model cannot be exported to other programs: {error}")

    def _say_frozen(self, model: "GPT") -> None:
        """Say how many weights training leaves as they are, if any."""
        frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
        if not frozen:
            return

        n_frozen = model.count_parameters(frozen)
        self.say("", f"{n_frozen:,} of {model.n_parameters:,} parameters stay as they are")
        if "embedding.weight" in frozen and model.config.tie_embeddings:
            self.say("", "the embedding, which stays as it is, is the unembedding too")

    def _say_data(self, store: "TokenStore", *, prepared_now: bool) -> None:
        """Say which folder the tokens are in, and how many there are."""
        origin = "prepared now" if prepared_now else "prepared before"
        n_train = store.n_tokens("train")
        n_val = store.n_tokens("val")
        self.say(
            "data",
            f"{store.folder}, {origin}",
            f"{n_train:,} tokens to train on, {n_val:,} held out; "
            f"{store.bytes_per_token('train'):.2f} bytes a token",
        )

    def _say_passes(self, module: "GPTModule") -> None:
        """Say how often the run trains on each source of its tokens, and warn where that is too often.

        Of a run with a time limit nobody knows how many steps it takes, so there is no warning.
        """
        settings = module.settings
        sources = module.store.sources
        n_in_block = sum(source.weight for source in sources)
        n_tokens = (
            settings.max_steps * settings.global_batch_size * module.model.config.context_length
        )

        warnings = []
        for source in sources:
            passes = n_tokens * source.weight / n_in_block / source.n_tokens
            if source.name:
                share = f"{source.weight} of {n_in_block} windows"
                there = f"{source.n_tokens:,} tokens"
                self.say("", f"{source.name}: {share}, {there}, {passes:,.2f} passes")

            if passes > MANY_PASSES and settings.max_time is None:
                name = source.name or "the text"
                remedy = f"a lower weight of {name}, " if source.name else ""
                warnings.append(
                    f"{name} is trained on {passes:,.1f} times, and after the fourth time a text teaches less and less "
                    f"(Muennighoff et al. 2023); take more text, {remedy}or a lower trainer.max_steps"
                )

        for warning in warnings:
            self.say("warning", warning)

    def _say_batch(self, settings: "TrainerSettings") -> None:
        """Say how the sequences of a step are divided, unless one device takes them all at once."""
        n_micro_steps = settings.n_micro_steps
        if n_micro_steps == 1 and settings.n_ranks == 1:
            return

        noun = "micro-step" if n_micro_steps == 1 else "micro-steps"
        parts = f"{n_micro_steps} {noun} of {settings.micro_batch_size}"
        if settings.n_ranks > 1:
            parts += f" on each of {settings.n_ranks} devices"
        self.say("batch", f"{settings.global_batch_size} sequences a step, in {parts}")

    def say_resume(self, state: "TrainingState | None", module: "GPTModule") -> None:
        """Say from which step the run goes on, and what a new number of steps does to the learning rate."""
        if state is None:
            self.say("resume", "nothing was saved yet: from the first step")
            return

        max_steps = module.settings.max_steps
        self.say("resume", f"{state.path}, step {state.step} of {max_steps}")

        # A schedule depends on the number of steps, so the learning rate jumps where that number has changed.
        if state.max_steps != max_steps:
            before = module.peak_lr * module.schedule(state.step, max_steps=state.max_steps)
            now = module.peak_lr * module.schedule(state.step, max_steps=max_steps)
            change = f"the learning rate of the next step was {before:.3g}, is {now:.3g}"
            self.say("", f"max_steps was {state.max_steps}, is {max_steps}: {change}")

    def say_stop(self, ending: "Ending", step: int, run: "Run") -> None:
        """Say why the run stopped at a step, which checkpoint there is of it, and how the run goes on."""
        last = run.folder / "checkpoints" / "last.ckpt"
        if ending.saved and last.exists():
            kept = f"saved as {last}"
        elif ending.saved:
            kept = "not saved, for want of callbacks.checkpoints"
        elif has_checkpoint(run.folder):
            kept = "the newest checkpoint is what is left"
        else:
            kept = "nothing was saved yet"
        self.say("stopped", f"by {ending.stopped_by} at step {step}; {kept}")
        self.say("next", resuming(run, self.typed))

    def say_done(self, trainer: "Trainer", run: "Run", *, n_steps: int, seconds: float) -> None:
        """Say how long the run took, and why it ended early where a callback ended it.

        n_steps and seconds count from the start of this command, which may have resumed the run.
        """
        from gptmini.training.loggers.console import duration

        self.say("done", f"{n_steps} steps in {duration(seconds)}")
        if trainer.global_step < trainer.max_steps:
            _, reason = ended_by(trainer)
            self.say("early", f"at step {trainer.global_step} of {trainer.max_steps}: {reason}")
            self.say("", f"to go on: {resuming(run, self.typed)}")

    def say_results(
        self,
        module: "GPTModule",
        *,
        best: "Best | None",
        keeps_best: bool,
        samples: Sequence[str],
        folder: Path,
    ) -> None:
        """Say how good the model became, show samples, and name the commands that follow.

        Args:
            module: the trained model with its last evaluation.
            best: the validation with the lowest loss; None if none was saved.
            keeps_best: whether the run was to save its best checkpoint at all.
            samples: texts that the model wrote last.
            folder: the run's folder.
        """
        self.say("losses", *self.console.final_table())

        if best is not None:
            loss = f"val loss {best.loss:.4f}, {best.bits_per_byte:.4f} bits per byte"
            self.say("best", f"{loss}, step {best.step}")
        elif keeps_best:
            evaluation = module.evaluation
            if evaluation is not None and math.isfinite(evaluation.loss):
                reason = "it could not be saved"
            else:
                reason = "no validation loss was finite; try a lower optimizer.lr"
            self.say("best", f"none: {reason}")

        for text in samples:
            self.say("sample", *text.splitlines())
        names = ["report"]
        if keeps_best:
            names = ["sample", "evaluate", *names]
        else:
            self.say("model", "not kept, for want of callbacks.checkpoints")
        self.say("next", *(command_line(name, as_argument(folder)) for name in names))


def with_prefix(number: float, unit: str) -> str:
    """A number from 0 to 10^15 with the SI prefix that leaves one to three digits before the point, as 7.1 MFLOP."""
    prefixes = ("", "k", "M", "G", "T")
    for prefix in prefixes:
        # A number that would be rounded to 1000.0 takes the next prefix.
        if number < 999.95 or prefix == prefixes[-1]:
            break
        number /= 1000
    return f"{number:.1f} {prefix}{unit}"


def watching(root: Path) -> str:
    """The command line that shows a folder of runs in TensorBoard."""
    return shlex.join(["tensorboard", "--logdir", as_argument(root)])


def resuming(run: "Run", typed: "Typed") -> str:
    """The command line that goes on with a run.

    Callbacks and loggers that the user added are typed again, and the user's own folder too: a stored configuration
    alone may not name a class.
    """
    arguments = [as_override("resume", as_argument(run.folder)), *parts_of_users(typed.overrides)]
    if typed.config_dir is not None:
        arguments += ["--config-dir", as_argument(Path(typed.config_dir))]
    return command_line("train", *arguments)


def make_console(kind: str) -> "Console":
    """The console of a run; kind is auto, lines or quiet."""
    from gptmini.training.loggers.console import LastingConsole

    # FORCE_COLOR, which notebooks and servers that test set, would let Rich draw a bar where nothing can move it.
    has_terminal = sys.stdout is not None and sys.stdout.isatty()
    return LastingConsole(
        quiet=kind == "quiet",
        force_terminal=None if has_terminal and kind != "lines" else False,
        force_jupyter=False,  # in a notebook Rich would print what is to be quiet
        soft_wrap=True,
        highlight=False,
    )


def open_announcer(
    console: "Console",
    run: "Run",
    settings: Settings,
    loggers: "Sequence[Logger]",
    typed: "Typed",
) -> Announcer:
    """The announcer of a run that has begun, which writes to the console and to the run's train.log."""
    from rich.console import Console

    from gptmini.training import EventLogger, MetricsLogger
    from gptmini.training.loggers.console import ConsoleLogger

    console_logger = ConsoleLogger(
        console,
        # By itself Rich would print to a notebook in place of the file, and colours where FORCE_COLOR asks for them.
        Console(
            file=run.log,
            force_terminal=False,
            force_jupyter=False,
            soft_wrap=True,
            highlight=False,
        ),
        settings.trainer.max_steps,
        run.lines,
        settings.trainer.validation_due,
    )
    announcer = Announcer(console_logger, typed, loggers)
    for logger in loggers:
        if isinstance(logger, MetricsLogger):
            logger.on_error = lambda error: announcer.say(
                "metrics", f"points are lost: {error.strerror}"
            )
        if isinstance(logger, EventLogger):
            logger.on_error = lambda error: announcer.say(
                "events", f"no longer written, until the run is resumed: {error.strerror}"
            )
    return announcer


def say_end(
    announcer: Announcer,
    trainer: "Trainer",
    ending: "Ending",
    module: "GPTModule",
    settings: Settings,
    run: "Run",
    *,
    seconds: float,
) -> None:
    """Say how a run ended, and put the job of Slurm that it is into the queue again where that was asked for.

    seconds is how long the command took.
    """
    from gptmini.training import Samples

    if ending.stopped_by is not None:
        announcer.say_stop(ending, trainer.global_step, run)
    else:
        checkpoints = checkpoints_of(settings)
        samples = next((part for part in settings.callbacks if isinstance(part, Samples)), None)
        announcer.say_done(trainer, run, n_steps=trainer.global_step - run.step, seconds=seconds)
        announcer.say_results(
            module,
            best=None if checkpoints is None else checkpoints.best,
            keeps_best=checkpoints is not None,
            samples=[] if samples is None else samples.texts,
            folder=run.folder,
        )

    if ending.saved and settings.trainer.requeue:
        from gptmini.training.devices.requeueing import requeue

        announcer.say("requeue", requeue(ending.stopped_by))
