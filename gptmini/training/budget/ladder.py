"""The ladder of budget=: models of increasing width, and the loss that the law predicts for each in a given time.

One timed step per model shows how many steps fit into the time. The width, the text and the number of steps determine
all other settings.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pydantic import ValidationError

from gptmini.model import GPTConfig, ModelSettings, new_gpt, training_loss
from gptmini.system.errors import ran_out_of_memory
from gptmini.system.hardware import choose_hardware
from gptmini.training.budget import timing
from gptmini.training.budget.law import TextSize, n_block_weights, predicted_loss, sizes_for_width
from gptmini.training.devices.batch_size import choose_batch_size
from gptmini.training.devices.recomputing import recompute_activations
from gptmini.training.settings import Settings
from gptmini.training.trainer_settings import TrainerSettings

# The widths of the ladder. A width of 64 is too small. On three texts, the loss after 60 s was 0.2 to 1.3 % higher with
# a width of 64 than with a width of 96.
WIDTHS = (96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
# Pairs of context_length and global_batch_size. A model takes the first pair for which at most MANY_STEPS steps fit
# into the time.
STEPS_OF = (
    (128, 16),
    (256, 16),
    (256, 32),
    (512, 32),
    (512, 64),
    (1024, 64),
    (1024, 128),
    (1024, 256),
    (1024, 512),
)
MANY_STEPS = 2000

# Maximum number of passes over a text. On 225 KB, the loss still fell with 37 passes. On 50 KB, 12 were enough, and
# best.ckpt is the model from before the loss rises.
MOST_PASSES = 40.0
# Minimum number of steps, if they fit into the time. A very small text is not enough to train a model in few passes.
LEAST_STEPS = 100
# Maximum number of weights in the blocks for each byte of text. More weights did not improve the loss on a text of
# 200 KB.
MOST_WEIGHTS = 8.0


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A model that budget= may choose, and the predicted loss of this model."""

    config: GPTConfig
    global_batch_size: int
    seconds_a_step: float
    n_steps: float  # number of useful steps that fit into the time
    loss: float  # loss that the law predicts, in bits per byte


def climb_ladder(
    settings: Settings,
    open_keys: Collection[str],
    text_of: Callable[[int], TextSize],
    seconds: float,
) -> list[Rung]:
    """Return the rungs in order of increasing width. Stop after the first rung that is not the best so far.

    Also stop at a width that does not fit into memory or has too many weights for the text.

    Only values of open_keys may be chosen, for example of model.d_model. The function text_of returns the size of the
    text for a width, because the vocabulary may depend on the width. The run may train for `seconds`.

    Raises pydantic.ValidationError if no width fits the values of the keys that are not open. Raises the error of the
    full memory if no width fits into memory.
    """
    rungs: list[Rung] = []
    widths = WIDTHS if "model.d_model" in open_keys else (settings.model.d_model,)
    for width in widths:
        text = text_of(width)
        try:
            config = _sizes(settings.model, open_keys, width).with_vocab_size(text.n_vocab)
        except ValidationError:  # the fixed number of heads does not divide this width
            if not rungs and width == widths[-1]:
                raise
            continue

        if rungs and n_block_weights(config) > MOST_WEIGHTS * text.n_bytes:
            break
        try:
            rungs.append(_rung(settings, open_keys, text, config, seconds))
        except (RuntimeError, MemoryError) as error:
            if not rungs or not ran_out_of_memory(error):
                raise
            break

        if best_rung(rungs) is not rungs[-1]:
            break
    return rungs


def best_rung(rungs: Sequence[Rung]) -> Rung:
    """Return the rung with the lowest predicted loss."""
    return min(rungs, key=lambda rung: rung.loss)


def most_useful_steps(
    trainer: TrainerSettings, open_keys: Collection[str], text: TextSize, tokens_a_step: int
) -> float:
    """Return the number of useful steps, or trainer.max_steps if this key is not open."""
    if "trainer.max_steps" not in open_keys:
        return trainer.max_steps
    worth_it = MOST_PASSES * text.n_bytes / text.bytes_per_token / tokens_a_step
    return max(LEAST_STEPS, worth_it)


def _sizes(model: ModelSettings, open_keys: Collection[str], width: int) -> ModelSettings:
    n_heads = None if "model.n_heads" in open_keys else model.n_heads
    sizes = {
        name: size
        for name, size in sizes_for_width(width, n_heads).items()
        # Without a number, the model's form decides the key-value heads and the width of the MLP.
        if f"model.{name}" in open_keys and getattr(model, name) is not None
    }
    return replace(model, **sizes)


def _rung(
    settings: Settings,
    open_keys: Collection[str],
    text: TextSize,
    config: GPTConfig,
    seconds: float,
) -> Rung:
    """Time a step of a model, with the first number of tokens per step that suits the time."""
    n_weights = n_block_weights(config)
    trainer = settings.trainer

    tokens_a_step = 0
    seconds_a_step = n_steps = 0.0
    for context_length, global_batch_size in STEPS_OF:
        if "model.context_length" in open_keys:
            config = replace(config, context_length=context_length)
        if "trainer.global_batch_size" in open_keys:
            trainer = replace(trainer, global_batch_size=global_batch_size)

        if config.context_length * trainer.global_batch_size == tokens_a_step:
            continue
        tokens_a_step = config.context_length * trainer.global_batch_size
        seconds_a_step = _seconds_a_step(settings, config, trainer)
        most = most_useful_steps(trainer, open_keys, text, tokens_a_step)
        n_steps = min(seconds / seconds_a_step, most)
        if n_steps <= MANY_STEPS:
            break

    n_read = n_steps * tokens_a_step * text.bytes_per_token
    return Rung(
        config=config,
        global_batch_size=trainer.global_batch_size,
        seconds_a_step=seconds_a_step,
        n_steps=n_steps,
        loss=predicted_loss(n_weights, text.worth(n_read), text.n_vocab),
    )


def _seconds_a_step(settings: Settings, config: GPTConfig, trainer: TrainerSettings) -> float:
    """Time one step of a new model. The loss is not compiled, because compiling each model would take too long."""
    model = new_gpt(config, seed=0)
    n_devices = trainer.devices_here
    hardware = choose_hardware(
        trainer.device, trainer.precision, False, n_devices, width=config.d_model
    )
    trainer = replace(trainer, batch_size=choose_batch_size(model, trainer, hardware))
    if trainer.checkpoint_activations:
        recompute_activations(model)
    loss = partial(training_loss, model)
    seconds, _ = timing.measure_step(model, loss, settings.optimizer.build, trainer, hardware)
    return seconds
