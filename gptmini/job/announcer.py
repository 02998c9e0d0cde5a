"""Print what a training run starts with, why it stops, and its results."""

import math
import re
import shlex
from collections.abc import Sequence
from functools import partial

import numpy as np

from gptmini.checkpoint import TrainingState
from gptmini.configuration.compose import as_override
from gptmini.configuration.init_from import takes_finetune
from gptmini.configuration.keys import user_component_overrides
from gptmini.configuration.request import UserRequest, key_of
from gptmini.console.numbers import duration, rounded, with_prefix
from gptmini.console.printing import command_line, sampling_command
from gptmini.data import TokenStore, without_marks
from gptmini.interop import choose_architecture
from gptmini.job.result import callbacks_of, checkpoints_of, early_stop
from gptmini.model import GPT
from gptmini.runs import Run, has_checkpoint, relative_to_cwd
from gptmini.system.errors import UserError
from gptmini.system.files import PACKAGE
from gptmini.tokenizer import END_OF_TEXT
from gptmini.training import (
    ENOUGH_PASSES,
    Best,
    ConsoleLogger,
    EventLogger,
    GPTModule,
    Logger,
    RunLogger,
    Samples,
    Settings,
    StopReason,
    TextSize,
    Trainer,
    TrainerSettings,
    n_block_weights,
    predicted_loss,
)

# A finished run suggests at most this many times its steps, if this lowers the predicted loss by more than WORTH_IT.
LONGER = 4
WORTH_IT = 0.02
PROMPT_TOKENS = 64  # number of held-out tokens to read the suggested prompt from
# A prompt is a part of the text, so a tokenizer of characters can encode it. Without punctuation, it needs no escapes.
WORDS = re.compile(r"\b\w{1,20}( \w{1,20}){1,4}\b")
# The page with all charts. TensorBoard uses port 6006 unless another program uses this port.
TENSORBOARD_PAGE = "http://localhost:6006/#custom_scalars"
QUESTIONS = PACKAGE.parent / "docs" / "questions.md"


class Announcer:
    """Prints lines about a run. Each line starts with a topic of at most eight letters. One or more texts follow."""

    def __init__(
        self, console: ConsoleLogger, request: UserRequest, loggers: Sequence[Logger]
    ) -> None:
        self.console = console
        self.print_topic = console.screen.print_topic
        self.request = request
        # Whether the run writes files for TensorBoard.
        self.has_events = any(isinstance(logger, EventLogger) for logger in loggers)
        for logger in loggers:
            if isinstance(logger, RunLogger):
                logger.on_error = partial(self.print_topic, logger.topic)

    def print_start(
        self, run: Run, module: GPTModule, settings: Settings, *, prepared_now: bool
    ) -> None:
        """Print the data, the model, the machine and the folder of a run, and the step that it resumes from.

        With prepared_now, this command has prepared the tokens, otherwise an earlier command.
        """
        for note in (*settings.notes, *module.hardware.notes, *run.notes):
            self.print_topic("warning", note)

        self.print_sizes(module.store, module.model, module.settings, prepared_now=prepared_now)
        self.print_setup(module, settings, is_new=run.state is None)
        reason = module.hardware.reasons.get("compile")
        if reason is not None and module.settings.compile != "auto":  # measured steps have decided
            self.print_topic("compile", reason)
        self.print_topic("run", str(run.folder))
        if self.has_events:
            command = shlex.join(["tensorboard", "--logdir", str(run.root or run.folder)])
            self.print_topic("", f"watch it: {command}")
            self.print_topic("", f"then open {TENSORBOARD_PAGE}")

        if run.resumed:
            self.print_resume(run.state, module)

    def print_sizes(
        self, store: TokenStore, model: GPT, settings: TrainerSettings, *, prepared_now: bool
    ) -> None:
        """Print the data and the size of the model, which may be on the meta device."""
        self.print_topic(
            "data",
            f"{store.folder}, {'prepared now' if prepared_now else 'prepared before'}",
            f"{store.n_tokens('train'):,} training tokens, {store.n_tokens('val'):,} validation tokens; "
            f"{store.bytes_per_token('train'):.2f} bytes per token",
        )
        self._print_long_chats(store, model.config.context_length)
        self._print_passes(store, settings, model.config.context_length)
        work = with_prefix(model.flops_per_token, "FLOP")
        self.print_topic("model", f"{model.n_parameters:,} parameters, {work} per token")
        try:
            choose_architecture(model.config)
        except UserError as error:
            self.print_topic("", f"the model cannot be exported to other programs: {error}")

    def print_setup(self, module: GPTModule, settings: Settings, *, is_new: bool) -> None:
        """Print the origin of the weights, the machine and the batch of a run. `is_new` means before its first step."""
        if module.origin is not None and is_new:
            step = module.origin["step"]
            at_step = "" if step is None else f", step {step}"
            self.print_topic("", f"starts from the weights of {module.origin['path']}{at_step}")
            if takes_finetune(module.origin["optimizer"], self.request):
                self.print_topic(
                    "",
                    "not trained with Muon here, so the run takes optimizer and warm-up of experiment=finetune",
                    f"optimizer.lr={settings.plain['optimizer']['lr']:g}; set optimizer= for another optimizer",
                )
        self._print_frozen(module.model)
        self.print_topic("machine", str(module.hardware))
        self._print_batch(module.settings)

    def _print_frozen(self, model: GPT) -> None:
        frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
        if frozen:
            n_frozen = model.count_parameters(frozen)
            self.print_topic("", f"{n_frozen:,} of {model.n_parameters:,} parameters are frozen")
        if "embedding.weight" in frozen and model.config.tie_embeddings:
            line = "the frozen embedding is also the unembedding (model.tie_embeddings=true)"
            self.print_topic("", line)

    def _print_long_chats(self, store: TokenStore, context: int) -> None:
        """Warn if more than 5 % of the training chats are longer than the context."""
        ends = [chats.document_ends("train").astype(np.int64) for chats in store.chats]
        lengths = np.concatenate([[0], *(np.diff(end, prepend=0) for end in ends)])[1:]
        n_long = np.count_nonzero(lengths > context)
        if n_long > 0.05 * len(lengths):
            fitting = np.quantile(lengths, 0.95, method="higher")
            fix = f"model.context_length={fitting} holds 95 % of them"
            if self.request.has("init_from"):  # the weights limit the context
                fix = "the model sees them in parts"
            self.print_topic(
                "warning",
                f"{n_long:,} of {len(lengths):,} chats are longer than model.context_length={context}; {fix}",
            )

    def _print_passes(
        self, store: TokenStore, settings: TrainerSettings, context_length: int
    ) -> None:
        """Print the number of passes over each source of tokens. With a time limit, it is a maximum."""
        most = "" if settings.max_time is None else "at most "
        sources = store.sources
        n_in_block = sum(source.weight for source in sources)
        n_tokens = settings.max_steps * settings.global_batch_size * context_length

        for source in sources:
            passes = n_tokens * source.weight / n_in_block / source.n_tokens
            line = f"{most}{rounded(passes)} passes"
            if source.name:
                size = f"{source.weight} of {n_in_block} windows, {source.n_tokens:,} tokens"
                self.print_topic("", f"{source.name}: {size}, {line}")
            else:
                self.print_topic("", f"{line} over the text")

    def _print_batch(self, settings: TrainerSettings) -> None:
        n_micro_steps = settings.n_micro_steps
        if n_micro_steps == 1 and settings.n_ranks == 1:
            return

        noun = "micro-step" if n_micro_steps == 1 else "micro-steps"
        parts = f"{n_micro_steps} {noun} of {settings.micro_batch_size}"
        if settings.n_ranks > 1:
            parts += f" on each of {settings.n_ranks} devices"
        self.print_topic("batch", f"{settings.global_batch_size} sequences per step: {parts}")

    def print_resume(self, state: TrainingState | None, module: GPTModule) -> None:
        """Print the step that the run resumes from, and how a new trainer.max_steps changes the learning rate."""
        if state is None:
            self.print_topic("resume", "no checkpoint was saved yet; starting from the first step")
            return

        max_steps = module.settings.max_steps
        self.print_topic("resume", f"{state.path}, step {state.step} of {max_steps}")

        # The schedule depends on the number of steps. If this number has changed, the learning rate jumps.
        if state.max_steps != max_steps:
            before = module.peak_lr * module.schedule(state.step, max_steps=state.max_steps)
            now = module.peak_lr * module.schedule(state.step, max_steps=max_steps)
            line = f"max_steps changed from {state.max_steps} to {max_steps}: "
            line += f"the next step's learning rate changes from {before:.3g} to {now:.3g}"
            self.print_topic("", line)

    def _print_stop(self, reason: StopReason, step: int, run: Run) -> None:
        """Print why and at which step the run stopped, its latest checkpoint, and the command that resumes the run."""
        last = run.folder / "checkpoints" / "last.ckpt"
        if reason.between_steps and last.exists():
            saved = f"saved as {last}"
        elif reason.between_steps:
            saved = "not saved: callbacks.checkpoints is off"
        elif has_checkpoint(run.folder):
            saved = "not saved; the run resumes from its latest checkpoint"
        else:
            saved = "no checkpoint was saved yet"
        self.print_topic("stopped", f"by {reason.stopped_by} at step {step}; {saved}")
        self.print_topic("next", resume_command(run, self.request))

    def print_end(
        self, trainer: Trainer, reason: StopReason, module: GPTModule, run: Run, *, seconds: float
    ) -> None:
        """Print how a run ended after this command trained it for some seconds, and the commands to run next."""
        if reason.stopped_by is not None:
            self._print_stop(reason, trainer.global_step, run)
            return
        self._print_done(trainer, run, seconds=seconds)
        self.print_topic("losses", *self.console.final_table())

        callbacks = callbacks_of(trainer)
        checkpoints = checkpoints_of(callbacks)
        if checkpoints is not None:
            self._print_best(checkpoints.best, module)
        for callback in callbacks:
            if isinstance(callback, Samples):
                for text in callback.texts:
                    self.print_topic("sample", *text.splitlines())
                self.print_topic("copied", *map(str, callback.copies))

        commands = [command_line("report", str(run.folder))]
        if checkpoints is None:
            self.print_topic("model", "not saved: callbacks.checkpoints is off")
        else:
            template = module.store.tokenizer.chat_template
            commands = [
                sampling_command(run.folder, template, *prompt_option(module.store)),
                command_line("evaluate", str(run.folder)),
                *commands,
            ]
        self.print_topic("next", *commands)
        best = None if checkpoints is None else checkpoints.best
        self._print_better(module, best, trainer.global_step)
        # An installed package has no docs.
        if QUESTIONS.is_file():
            questions = "is it good, what makes it better, did it copy"
            self.print_topic("more", f"{relative_to_cwd(QUESTIONS)}: {questions}")

    def _print_done(self, trainer: Trainer, run: Run, *, seconds: float) -> None:
        n_steps = trainer.global_step - run.step
        noun = "step" if n_steps == 1 else "steps"
        self.print_topic("done", f"{n_steps} {noun} in {duration(seconds)}")
        if trainer.global_step < trainer.max_steps:
            _, why = early_stop(trainer)
            self.print_topic(
                "early",
                f"at step {trainer.global_step} of {trainer.max_steps}: {why}",
                f"to continue: {resume_command(run, self.request)}",
            )

    def _print_better(self, module: GPTModule, best: Best | None, n_steps: int) -> None:
        """Print a command that trains a better model, if the law of budget= predicts a clearly lower loss for it."""
        typed = self.request.in_all_starts()
        chosen = {"trainer.max_steps", "trainer.max_time", "epochs", "budget", "experiment"}
        is_chosen = module.origin is not None or chosen & {key_of(line) for line in typed}
        has_ended_early = n_steps < module.settings.max_steps
        if is_chosen or has_ended_early or (best is not None and best.step < n_steps):
            return

        n_weights = n_block_weights(module.model.config)
        text = TextSize.of(module.store)
        n_read = n_steps * module.tokens_per_step * text.bytes_per_token
        factor = min(LONGER, ENOUGH_PASSES * text.n_bytes / n_read)
        now, longer = (
            predicted_loss(n_weights, text.worth(times * n_read), text.n_vocab)
            for times in (1, factor)
        )
        gain = 1 - longer / now
        if gain > WORTH_IT:
            steps = f"trainer.max_steps={round(factor * n_steps)}"
            self.print_topic("better", command_line("train", *typed, steps))
            line = (
                f"predicted: {100 * gain:.0f} % fewer bits per byte, in {factor:.1f} times the time"
            )
            self.print_topic("", line)

    def _print_best(self, best: Best | None, module: GPTModule) -> None:
        """Print the validation with the lowest loss, or why no checkpoint of such a validation exists."""
        if best is not None:
            loss = f"val loss {best.loss:.4f}, {best.bits_per_byte:.4f} bits per byte"
            self.print_topic("best", f"{loss}, step {best.step}")
        elif math.isfinite(module.evaluation.loss):
            self.print_topic("best", "none: the checkpoint could not be saved")
        else:
            reason = "no validation loss was finite; try a lower optimizer.lr"
            self.print_topic("best", f"none: {reason}")


def prompt_option(store: TokenStore) -> list[str]:
    """Return the option --prompt of gptmini sample with the first words of the held-out text, if it has any."""
    ids = without_marks(store.tokens("val")[:PROMPT_TOKENS])
    text = store.tokenizer.decode(ids.tolist()).replace(END_OF_TEXT, "\n")
    words = WORDS.search(text) or re.search(r"\w{1,40}", text)
    return [] if words is None else ["--prompt", words[0]]


def resume_command(run: Run, request: UserRequest) -> str:
    """Return the command that resumes a run.

    It repeats what adds the user's own classes, because gptmini calls no class that only a stored configuration names.
    """
    arguments = [
        as_override("resume", str(run.folder)),
        *user_component_overrides(request.overrides),
    ]
    if request.config_dir is not None:
        arguments += ["--config-dir", request.config_dir]
    return command_line("train", *arguments)
