"""A resumed run takes overrides of how it is computed and watched, and refuses those that would change its past."""

import math
import re
from pathlib import Path

import pytest
import torch
import yaml

from commands.resuming.kills import killed
from commands.resuming.readings import assert_refused, curves, snapshot, steps
from gptmini.commands.resumed import RESUMABLE
from gptmini.optim import TrapezoidSchedule
from gptmini.runs import curves_of, read_lines
from run_folders import config_of, last, newest

pytestmark = pytest.mark.slow  # together they take minutes


def test_a_complete_run_says_so_and_nothing_is_trained(complete, resume):
    complete()
    before = snapshot(newest())

    result = resume()
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        f"done     {newest().relative_to(Path.cwd())} is complete at step 7; trainer.max_steps= goes further\n"
        f"next     gptmini sample {newest().relative_to(Path.cwd())}\n"
    )
    assert snapshot(newest()) == before


def test_more_steps_follow_the_longer_schedule_and_are_kept(complete, resume):
    complete()
    schedule = TrapezoidSchedule(warmup_steps=2, final_fraction=0.0, decay_fraction=0.7)
    was = [0.03 * schedule(step, max_steps=7) for step in range(12)]
    now = [0.03 * schedule(step, max_steps=12) for step in range(12)]

    with killed(9):
        resume("trainer.max_steps=12")
    said = (
        "max_steps was 7, is 12: the learning rate of the next step "
        f"was {was[7]:.3g}, is {now[7]:.3g}\n"
    )
    assert said in (newest() / "train.log").read_text()
    assert config_of(newest())["trainer"]["max_steps"] == 12

    result = resume()
    assert result.code == 0
    assert "step 9 of 12\n" in result.out
    assert "max_steps was" not in result.out
    assert last(newest())["global_step"] == 12
    rates = dict(curves(newest())["train/lr/matrices"])
    assert list(rates) == list(range(1, 13))
    assert list(rates.values()) == pytest.approx([*was[:7], *now[7:]], rel=1e-6)


def test_fewer_steps_than_are_done_are_refused_and_nothing_changes(complete, resume):
    complete()
    before = snapshot(newest())
    result = resume("trainer.max_steps=6")
    assert_refused(result, "trainer.max_steps must be at least the 7 done, got 6")
    assert snapshot(newest()) == before


REFUSED = [
    "optimizer.lr=1",
    "seed=2",
    "name=other",
    "model=gpt2",
    "data=pydoc",
    "tokenizer=bpe",
    "experiment=shakespeare_char_cpu",
    "init_from=absent",
    "trainer.global_batch_size=8",
    "trainer.precision=bf16",
    "callbacks.samples.seed=2",
    "~callbacks.scalars",
    "+trainer.foo=1",
    "trainer={max_steps:9}",
    "callbacks.scalars._target_=os.system",
]


@pytest.mark.parametrize("override", REFUSED)
def test_an_override_that_would_change_the_past_is_refused_by_name(complete, resume, override):
    complete()
    before = snapshot(newest())
    result = resume(override)
    assert_refused(result, f"error: {override} would change the past of ", " init_from=runs/smoke/")
    assert snapshot(newest()) == before


def test_what_a_run_has_already_may_be_typed_again(complete, resume, short):
    complete("seed=3")
    result = resume(*short, "seed=3", "tokenizer=byte", "optimizer.lr=0.03")
    assert (result.code, result.err) == (0, ""), result


def test_a_callback_of_a_run_can_be_turned_off_and_not_on(complete, resume):
    complete()
    said = "callbacks.pictures can only be turned off in a run that goes on"
    assert_refused(resume("callbacks.pictures={layers:[0]}"), said)
    assert resume("~callbacks.samples", "trainer.max_steps=8").code == 0
    assert config_of(newest())["callbacks"]["samples"] is None


def test_what_is_shown_of_a_resumed_run_is_its_own_configuration(complete, resume):
    complete("seed=3")
    before = snapshot(newest())
    result = resume("--cfg", "job", "trainer.max_steps=9")
    assert (result.code, result.err) == (0, "")

    expected = config_of(newest())
    del expected["version"], expected["typed"]
    expected["trainer"]["max_steps"] = 9
    expected["resume"] = str(newest().relative_to(Path.cwd()))  # what runs/latest means now
    assert yaml.safe_load(result.out) == expected

    refused = resume("--cfg", "job", "seed=2")
    assert_refused(refused, "seed=2 would change the past of ")
    assert refused.out == ""
    assert snapshot(newest()) == before


def test_only_train_goes_on_with_a_run(complete, script):
    complete("seed=3")
    result = script("prepare", "resume=runs/latest")
    assert_refused(
        result, "gptmini prepare begins no run and goes on with none, got resume=runs/latest"
    )


def micro_steps_since(folder):
    """Micro-steps of a run since it was last begun or resumed."""
    return last(folder)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"]


# What each key does to a run that was killed at step 5 and is resumed at step 4 of 7: a value, and whether it took
# effect, by the run folder and the output.
ALLOWED = {
    "trainer.max_steps": (6, lambda folder, out: last(folder)["global_step"] == 6),
    "trainer.max_time": (
        0.001,
        lambda folder, out: "stopped  by the time limit at step 5; saved as" in out,
    ),
    "trainer.max_bad_steps": (2, lambda folder, out: True),  # has a test of its own
    "trainer.val_every_steps": (
        1,
        lambda folder, out: steps(folder, "val/loss") == [2, 4, 5, 6, 7],
    ),
    "trainer.batch_size": (4, lambda folder, out: micro_steps_since(folder) == 3),
    "trainer.device": ("cpu", lambda folder, out: "machine  cpu, " in out),
    "trainer.devices": (1, lambda folder, out: micro_steps_since(folder) == 6),
    "trainer.num_nodes": (1, lambda folder, out: micro_steps_since(folder) == 6),
    "trainer.strategy": ("auto", lambda folder, out: micro_steps_since(folder) == 6),
    "trainer.checkpoint_activations": (True, lambda folder, out: micro_steps_since(folder) == 6),
    "trainer.requeue": (True, lambda folder, out: "requeue" not in out),  # has a test of its own
    "trainer.timeout": (60, lambda folder, out: micro_steps_since(folder) == 6),
    "trainer.compile": (False, lambda folder, out: ", eager, " in out),
    "trainer.threads": (2, lambda folder, out: torch.get_num_threads() == 2),
    "data_dir": (
        "there",
        lambda folder, out: re.search("^data     there/text-byte-\\w+, prepared now$", out, re.M),
    ),
    "num_workers": (1, lambda folder, out: "prepared before" in out),
    "callbacks.scalars.every_steps": (
        4,
        lambda folder, out: steps(folder, "train/lr/matrices") == [1, 2, 3, 4, 7],
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
    "console": ("quiet", lambda folder, out: out == ""),
}


def test_every_override_that_a_resumed_run_takes_is_tried_here():
    assert set(ALLOWED) == set(RESUMABLE)


@pytest.mark.parametrize("key", ALLOWED)
def test_an_override_of_how_it_is_computed_and_watched_takes_effect_and_is_kept(
    interrupted, resume, key
):
    interrupted()
    value, took_effect = ALLOWED[key]

    try:
        result = resume(f"{key}={value}")
        assert result.code == 0
        assert took_effect(newest(), result.out), result.out
    finally:
        torch.set_num_threads(1)

    kept = (newest() / "config.yaml").read_text()
    assert re.search(rf"^ *{key.rpartition('.')[2]}: {str(value).lower()}$", kept, re.M)


def test_a_new_limit_of_bad_steps_is_the_one_that_counts(interrupted, resume, monkeypatch):
    interrupted()

    def no_number(logits, targets):
        return logits.sum() * math.nan

    monkeypatch.setattr("gptmini.model.loss.next_token_loss", no_number)
    assert_refused(resume("trainer.max_bad_steps=2"), "2 steps in a row, to step 6, ")


@pytest.mark.parametrize("part", ["scalars", "checkpoints"])
def test_a_part_that_a_run_was_begun_without_cannot_be_given_an_interval(begin, resume, part):
    begin(f"~callbacks.{part}")
    before = snapshot(newest())
    assert_refused(resume(f"callbacks.{part}.every_steps=1"), f"callbacks.{part}")
    assert snapshot(newest()) == before


@pytest.mark.parametrize("sign", ["", "++"])
def test_a_folder_that_is_typed_for_the_tokens_is_the_one_that_counts(complete, resume, sign):
    complete()
    result = resume(f"{sign}data_dir=elsewhere", "trainer.max_steps=9")
    assert result.code == 0, result.err
    assert "data     elsewhere/text-byte-" in result.out
