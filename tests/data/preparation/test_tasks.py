"""Tasks in threads: results and errors in the order of the tasks."""

import time

import pytest

from gptmini.data import Document
from gptmini.data.preparation.tasks import cut_tasks, in_order
from gptmini.user_error import UserError


@pytest.fixture
def tasks(monkeypatch):
    """Six tasks of a document each."""
    monkeypatch.setattr("gptmini.data.preparation.tasks.MOST_PARTS", 1)
    return list(cut_tasks(Document("train", f"Text {i}") for i in range(6)))


def number_of(task, is_over):
    """The number of a task; earlier tasks take longer."""
    time.sleep(0.01 * (6 - task.number))
    return task.number


@pytest.mark.parametrize("n_workers", [1, 3, 8])
def test_results_come_in_the_order_of_the_tasks(tasks, n_workers):
    assert list(in_order(number_of, tasks, n_workers)) == list(range(6))


@pytest.mark.parametrize("n_workers", [1, 2, 8])
@pytest.mark.parametrize("failing", [(1, 2), (0, 5), (3,), ()])
def test_the_first_error_in_order_is_raised_for_any_number_of_workers(tasks, n_workers, failing):
    def work(task, is_over):
        number_of(task, is_over)
        if task.number in failing:
            raise UserError(f"task {task.number}")
        return task.number

    def cut_short():
        yield from tasks
        raise UserError("the text ends too soon")

    n_sound = failing[0] if failing else len(tasks)
    results = in_order(work, cut_short(), n_workers)
    assert [next(results) for _ in range(n_sound)] == list(range(n_sound))
    said = f"^task {n_sound}$" if failing else "^the text ends too soon$"
    with pytest.raises(UserError, match=said):
        next(results)
