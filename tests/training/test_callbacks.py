"""Callbacks refuse a wrong value where they are made, and what does not fit the text before the first step."""

import math
from fractions import Fraction

import lightning as L
import pytest
from pydantic import ValidationError

from gptmini.training import OverfittingNotice, Pictures, RunCheckpoints, Samples, Scalars
from gptmini.training.trainer import check_callback
from gptmini.user_error import UserError
from training.test_pictures import PICTURES
from training.test_shown import SAMPLING

FINE = {
    Scalars: {"every_steps": 1, "peak_tflops": None},
    RunCheckpoints: {"every_steps": 1},
    OverfittingNotice: {"patience": 3},
    Samples: SAMPLING,
    Pictures: PICTURES,
}
REFUSED = {
    Scalars: {"every_steps": [0, 1.0, True], "peak_tflops": [0, "fast", True, math.inf, math.nan]},
    RunCheckpoints: {"every_steps": [0, None]},
    OverfittingNotice: {"patience": [0, 2.5]},
    Samples: {
        "prompts": [[], "text", [3]],
        "seed": [1.0],
        "max_new_tokens": [0, None],
        "temperature": [-1, math.nan],
        "top_k": [0],
    },
    Pictures: {
        "layers": [[], 3, [True]],
        "heads": [[0.5]],
        "text": ["", 3],
        "max_tokens": [0],
        "embedding_tokens": ["all"],
        "tokens": [3],
    },
}
CASES = []
for kind, values_of_names in REFUSED.items():
    for name, values in values_of_names.items():
        CASES += [(kind, name, value) for value in values]


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_a_wrong_value_is_refused_by_name(kind, name, value):
    kind(**FINE[kind])
    with pytest.raises(ValidationError) as error:
        kind(**FINE[kind] | {name: value})
    assert {found["loc"][0] for found in error.value.errors()} == {name}


def test_a_prompt_that_does_not_fit_the_text_is_refused_before_the_first_step(train):
    class Never(L.Callback):
        def on_train_batch_start(self, *_):
            raise AssertionError("a step was begun")

    with pytest.raises(UserError, match="surrogate"):
        train(callbacks=[Never(), Samples(**SAMPLING | {"prompts": ["\ud800"]})])


class Keeping(L.Callback):
    """A callback with a state."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return {"kept": self.state}


def test_only_a_callback_whose_state_is_plain_is_taken():
    fine = Keeping([1, ("a", None), {"b": 2.5}])
    assert check_callback("mine", fine) is fine
    with pytest.raises(UserError, match="Keeping keeps in its state what a checkpoint cannot"):
        check_callback("mine", Keeping([Fraction(1, 2)]))
    with pytest.raises(UserError, match=r"callbacks\.mine must be a callback"):
        check_callback("mine", 3)
