"""Commands with trainer.compile=auto on a pretended GPU: what they print, store and keep."""

import pytest

from gptmini.configuration.building import build_settings
from gptmini.training import Ranks, hardware_of
from gptmini.training.devices import compilation
from run_folders import config_of, newest

STEPS = ("trainer.max_steps=6", "trainer.batch_size=1")


@pytest.mark.parametrize(
    ("seconds_a_step", "expected", "said"), [(9.0, False, "54 s"), (11.0, True, "1 min 06 s")]
)
def test_the_choice_is_printed_stored_sent_to_all_ranks_and_kept(
    script, short, monkeypatch, compiling_gpu, seconds_a_step, expected, said
):
    plans = []
    monkeypatch.setattr(Ranks, "broadcast", lambda ranks, plan: plans.append(plan))
    measured = compiling_gpu(seconds_a_step)
    result = script("train", *short, *STEPS)
    assert result.code == 0, result
    assert measured == [4]  # micro-steps of a step
    word = "compiled" if expected else "eager"
    assert f", {word}, " in next(
        line for line in result.out.splitlines() if line.startswith("machine ")
    )
    (reason,) = (line for line in result.out.splitlines() if line.startswith("compile "))
    assert said in reason
    assert config_of(newest())["trainer"]["compile"] is expected

    # Neither another rank nor a resumed run measures again.
    monkeypatch.setattr(compilation, "measure_module", pytest.fail)
    of_rank = build_settings(plans[0]["config"])
    assert hardware_of(of_rank).compile is of_rank.trainer.compile is expected
    result = script("train", "resume=runs/latest", "trainer.max_steps=7")
    assert result.code == 0, result
    assert f", {word}, " in result.out
    assert "compile " not in result.out
    assert config_of(newest())["trainer"]["compile"] is expected


def test_a_resumed_run_chooses_again_for_the_steps_that_are_left_if_it_says_auto(
    script, short, compiling_gpu
):
    measured = compiling_gpu(11.0)
    assert script("train", *short, *STEPS).code == 0
    assert config_of(newest())["trainer"]["compile"] is True
    result = script("train", "resume=runs/latest", "trainer.max_steps=8", "trainer.compile=auto")
    assert result.code == 0, result
    assert len(measured) == 2
    assert "compile  the steps take 22 s" in result.out
    assert config_of(newest())["trainer"]["compile"] is False


def test_an_estimate_gives_the_choice_of_the_run_and_its_reason(script, short, compiling_gpu):
    compiling_gpu(11.0)
    result = script("train", *short, *STEPS, "trainer.max_time=30", "--dry-run")
    assert result.code == 0, result
    assert "trainer.compile=false: the steps take 30 s" in result.out


def test_a_cpu_measures_stores_and_prints_nothing(script, short, monkeypatch):
    monkeypatch.setattr(compilation, "measure_module", pytest.fail)
    result = script("train", *short, "trainer.device=cpu")
    assert result.code == 0, result
    assert config_of(newest())["trainer"]["compile"] == "auto"
    assert "compile " not in result.out
