"""The run that the tests resume, and ways to end it at a chosen moment."""

from contextlib import contextmanager

import pytest

from gptmini.training.callbacks.samples import Samples
from gptmini.training.callbacks.scalars import Scalars

LONG = (
    "trainer.max_steps=7",
    "trainer.batch_size=2",
    "model.dropout=0.2",
    "callbacks.checkpoints.every_steps=3",
)
# A checkpoint at each step. After five steps, last has step 5, previous step 4 and best step 3.
EACH = ("trainer.val_every_steps=3", "callbacks.checkpoints.every_steps=1")


class Kill(BaseException):
    """Ends a run like SIGKILL: no part of gptmini may catch it."""


def die():
    raise Kill


@contextmanager
def when(step, act, hook="on_train_batch_start", owner=Scalars):
    """Act once, in a callback hook, after a number of optimizer steps; by default when the next step starts."""
    before = getattr(owner, hook)

    with pytest.MonkeyPatch.context() as patch:

        def then(self, trainer, *rest):
            before(self, trainer, *rest)
            if trainer.global_step == step:
                patch.undo()
                act()

        patch.setattr(owner, hook, then)
        yield


@contextmanager
def killed(step, *where):
    """Kill the run that trains in this context, at the point where when() acts."""
    with when(step, die, *where), pytest.raises(Kill):
        yield


# Arguments of killed(), for every stage of a run.
KILLS = {
    "before the first checkpoint": (1, "on_train_batch_end"),
    "after its step is saved": (3,),
    "amid a validation": (4, "on_validation_batch_end"),
    "before its step is saved": (5, "on_train_batch_end"),
    "amid a step": (5, "on_before_optimizer_step"),
    "between a validation and its save": (6, "on_validation_end", Samples),
    "before the last save": (7, "on_validation_end", Samples),
}
