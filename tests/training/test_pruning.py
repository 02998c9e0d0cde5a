"""Pruning ends a run whose validation is worse than the median of the finished runs beside it at the same step."""

import json
from types import SimpleNamespace

import pytest

from gptmini.runs import RunStatus, write_status
from gptmini.training.callbacks.pruning import Pruning

# Bits per byte of other runs at steps 5 and 10, and the states of these runs.
OTHERS = [
    ("done", {5: 1.0, 10: 3.0}),
    ("done", {5: 2.0, 10: 4.0}),
    ("done", {5: 9.0, 10: 8.0}),
    ("running", {5: 0.1, 10: 0.1}),
    ("ended", {5: 0.1, 10: 0.1}),
]


@pytest.mark.parametrize(
    ("step", "bits", "options", "is_pruned"),
    [
        (5, 2.1, {}, True),  # the median at step 5 is 2
        (5, 2.0, {}, False),
        (10, 2.1, {}, False),
        (10, 4.1, {}, True),
        (5, 9.9, {"startup": 4}, False),  # three runs are done
        (5, 9.9, {"warmup": 5}, False),
        (10, 9.9, {"warmup": 5}, True),
        (7, 9.9, {}, False),  # this validation is not due, so other runs do not have it
        (5, float("nan"), {}, False),
    ],
)
def test_a_run_ends_if_it_is_worse_than_the_median(
    tmp_path, monkeypatch, step, bits, options, is_pruned
):
    monkeypatch.setattr("gptmini.training.callbacks.pruning.print_line", lambda *line: None)
    for number, (state, losses) in enumerate(OTHERS):
        (tmp_path / str(number)).mkdir()
        write_status(tmp_path / str(number), RunStatus(state=state, step=10))
        lines = [json.dumps({"step": at, "val/bits_per_byte": loss}) for at, loss in losses.items()]
        (tmp_path / str(number) / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    trainer = SimpleNamespace(
        global_step=step,
        default_root_dir=tmp_path / "new",
        strategy=SimpleNamespace(broadcast=lambda value: value),
        should_stop=False,
    )
    module = SimpleNamespace(
        settings=SimpleNamespace(validation_due=lambda step: step % 5 == 0),
        evaluation=SimpleNamespace(bits_per_byte=bits),
    )
    pruning = Pruning(**{"startup": 3, "warmup": 0} | options)
    pruning.on_validation_end(trainer, module)
    assert trainer.should_stop == is_pruned
    assert bool(pruning.stopping_reason_message) == is_pruned
