"""The warning that the validation loss no longer falls: when it is printed, and only once, also in a resumed run."""

from types import SimpleNamespace

import pytest

from gptmini.training import OverfittingNotice


class Saying:
    """A logger that stores printed lines."""

    def __init__(self):
        self.lines = []

    def print_line(self, line):
        self.lines.append(line)


def validate(notice, losses, first_step=0):
    """Pass losses to the callback, ten steps apart; return the printed lines."""
    logger = Saying()
    for i, loss in enumerate(losses):
        trainer = SimpleNamespace(loggers=[logger], global_step=first_step + 10 * i)
        module = SimpleNamespace(latest_evaluation=SimpleNamespace(loss=loss))
        notice.on_validation_end(trainer, module)
    return logger.lines


@pytest.mark.parametrize(
    ("losses", "n_lines"),
    [
        ([3.0, 2.0, 2.1, 2.2], 0),
        ([3.0, 2.0, 2.1, 2.2, 2.3], 1),
        ([3.0, 2.0, 2.1, 2.2, 1.9, 2.3, 2.4], 0),
        ([2.0] * 4, 1),
        ([3.0, 2.0, *[2.5] * 20], 1),
        ([2.0, *[float("nan")] * 3], 0),
    ],
)
def test_it_speaks_once_after_three_validations_above_the_lowest(losses, n_lines):
    lines = validate(OverfittingNotice(patience=3), losses)
    assert len(lines) == n_lines
    assert all("below 2.0000 (step " in line for line in lines)


@pytest.mark.parametrize("n_before", range(7))
def test_a_resumed_notice_speaks_as_one_that_went_on(n_before):
    losses = [3.0, 2.0, 2.1, 2.2, 2.3, 2.4, 2.5]
    first = OverfittingNotice(patience=3)
    lines = validate(first, losses[:n_before])
    second = OverfittingNotice(patience=3)
    second.load_state_dict(first.state_dict())
    lines += validate(second, losses[n_before:], first_step=10 * n_before)
    assert lines == validate(OverfittingNotice(patience=3), losses)
