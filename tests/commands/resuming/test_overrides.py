"""A resumed run accepts overrides of how it is computed and watched, and refuses overrides that change its past."""

import math
import re
from pathlib import Path

import pytest
import torch
import yaml

from commands.resuming.kills import killed
from commands.resuming.readings import curves, snapshot, steps
from gptmini.key_table import keys_with
from gptmini.optim import TrapezoidSchedule
from gptmini.runs import curves_of, read_lines
from run_folders import config_of, last, newest


def test_more_steps_follow_the_longer_schedule_and_are_kept(complete, resume):
    complete()
    schedule = TrapezoidSchedule(warmup_steps=2, final_fraction=0.0, decay_fraction=0.7)
    was = [0.03 * schedule(step, max_steps=7) for step in range(12)]
    now = [0.03 * schedule(step, max_steps=12) for step in range(12)]

    with killed(9):
        resume("trainer.max_steps=12")
    said = (
        "max_steps changed from 7 to 12: the next step's learning rate "
        f"changes from {was[7]:.3g} to {now[7]:.3g}\n"
    )
    assert said in (newest() / "train.log").read_text()
    assert config_of(newest())["trainer"]["max_steps"] == 12

    result = resume()
    assert "step 9 of 12\n" in result.out
    assert "max_steps changed" not in result.out
    assert last(newest())["global_step"] == 12
    rates = dict(curves(newest())["train/lr/matrices"])
    assert list(rates) == list(range(1, 13))
    assert list(rates.values()) == pytest.approx([*was[:7], *now[7:]], rel=1e-6)


def test_what_a_run_has_already_may_be_typed_again_and_is_shown(complete, resume, script, short):
    complete("seed=3")
    before = snapshot(newest())
    result = resume(*short, "seed=3", "tokenizer=byte", "optimizer.lr=0.03")
    assert (result.code, result.err) == (0, ""), result

    expected = config_of(newest())
    for name in ("version", "begun", "id", "typed"):  # they identify the run
        del expected[name]
    expected["trainer"]["max_steps"] = 9
    expected["resume"] = str(newest().relative_to(Path.cwd()))  # the current target of runs/latest
    for result in (
        resume("--cfg", "job", "trainer.max_steps=9"),
        script("train", f"folder={newest()}", "--cfg", "job", "trainer.max_steps=9"),
    ):
        assert yaml.safe_load(result.out) | {"resume": expected["resume"]} == expected
    assert snapshot(newest()) == before


def micro_steps_since(folder):
    """Micro-steps of a run since it was last started or resumed."""
    return last(folder)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"]


# The effect of each key on a run that was killed at step 5 and is resumed at step 4 of 7: a value, and a check of the
# run folder and the output. None: another key has the same effect, or the key has its own test.
ALLOWED = {
    "trainer.max_steps": (8, lambda folder, out: last(folder)["global_step"] == 8),
    "trainer.max_time": ("1:00:00", None),
    "trainer.max_bad_steps": (2, None),
    "trainer.val_every_steps": (
        4,
        lambda folder, out: steps(folder, "val/loss") == [2, 4, 8],
    ),
    "trainer.batch_size": (4, lambda folder, out: micro_steps_since(folder) == 4),
    "trainer.device": ("cpu", lambda folder, out: "machine  cpu, " in out),
    "trainer.devices": (1, None),
    "trainer.num_nodes": (1, None),
    "trainer.strategy": ("auto", None),
    "trainer.checkpoint_activations": (True, None),
    "trainer.requeue": (True, None),
    "trainer.timeout": (60, None),
    "trainer.compile": (False, lambda folder, out: ", eager, " in out),
    "trainer.threads": (2, lambda folder, out: torch.get_num_threads() == 2),
    "data_dir": (
        "there",
        lambda folder, out: re.search("^data     there/my-byte-\\w+, prepared now$", out, re.M),
    ),
    "num_workers": (1, None),
    "callbacks.scalars.every_steps": (
        3,
        lambda folder, out: steps(folder, "train/lr/matrices") == [1, 2, 3, 4, 6, 8],
    ),
    "callbacks.scalars.peak_tflops": (
        1,
        lambda folder, out: "work/mfu" in curves_of(read_lines(folder)),
    ),
    "callbacks.checkpoints.every_steps": (
        5,
        lambda folder, out: last(folder, "previous")["global_step"] == 5,
    ),
    "callbacks.samples": (
        "null",
        lambda folder, out: steps(folder, "samples/text_summary") == [2, 4],
    ),
    "callbacks.pictures": ("null", lambda folder, out: not list(folder.glob("plugins"))),
    "console": ("lines", lambda folder, out: "step 8/8" in out),
}


def test_every_override_that_a_resumed_run_takes_is_tried_here():
    assert set(ALLOWED) == keys_with("resumable")


def test_overrides_of_how_it_is_computed_and_watched_take_effect_and_are_kept(interrupted, resume):
    interrupted()
    try:
        result = resume(*[f"{key}={value}" for key, (value, _) in ALLOWED.items()])
        assert result.code == 0, result.err
        for key, (_, took_effect) in ALLOWED.items():
            assert took_effect is None or took_effect(newest(), result.out), key
    finally:
        torch.set_num_threads(1)

    config = config_of(newest())
    for key, (value, _) in ALLOWED.items():
        kept = config
        for part in key.split("."):
            kept = kept[part]
        assert kept == (None if value == "null" else value), key


def test_a_new_limit_of_bad_steps_is_the_one_that_counts(interrupted, resume, monkeypatch):
    interrupted()

    def no_number(logits, targets):
        return logits.sum() * math.nan

    monkeypatch.setattr("gptmini.model.loss.next_token_loss", no_number)
    resume("trainer.max_bad_steps=2").assert_refused("2 steps in a row ")


def test_a_callback_can_be_turned_off_and_one_that_a_run_lacks_has_no_interval(begin, resume):
    begin("~callbacks.scalars")
    before = snapshot(newest())
    resume("callbacks.scalars.every_steps=1").assert_refused("callbacks.scalars")
    assert snapshot(newest()) == before

    assert resume("~callbacks.samples", "trainer.max_steps=8").code == 0
    assert config_of(newest())["callbacks"]["samples"] is None
