"""The rules behind budget=, by hand: the scaling law, the sizes of a width, and the steps in a time."""

import math
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from gptmini.key_table import keys_with
from gptmini.model import ModelSettings, new_gpt, preset
from gptmini.system.hardware import choose_hardware
from gptmini.training.budget import ladder, law, timing
from gptmini.training.budget.ladder import WIDTHS
from gptmini.training.budget.law import TextSize
from gptmini.training.trainer_settings import TrainerSettings
from training.runs import SETTINGS

TRAINER = TrainerSettings(**SETTINGS | {"max_steps": 500, "global_batch_size": 16})
QWEN = preset("qwen_tiny", vocab_size=256)
OPEN = keys_with("by_budget")
LARGE = 10**12  # bytes of a text that is too large for two passes


def test_the_law_at_its_units():
    assert law.predicted_loss(10**6, 1e6, 4000) == pytest.approx(0.195 + 0.377 + 0.510 + 0.156)


def test_the_law_falls_with_more_weights_more_text_and_more_ids():
    here = law.predicted_loss(10**6, 1e6, 4000)
    assert law.predicted_loss(2 * 10**6, 1e6, 4000) < here
    assert law.predicted_loss(10**6, 2e6, 4000) < here
    assert law.predicted_loss(10**6, 1e6, 8000) < here


@pytest.mark.parametrize(
    ("n_bytes", "width", "n_vocab"),
    [
        (200_000, 128, 1000),
        (2_000_000, 128, 4000),  # 1020 * 10 ** 0.45 = 2875, and sqrt(2000 * 4000) = 2828
        (20_000_000, 128, 8000),  # 1020 * 100 ** 0.45 = 8102
        (5 * 10**9, 192, 8000),  # 50 * 192 = 9600
        (5 * 10**9, 1024, 32_000),
        (2000, 128, 512),
    ],
)
def test_ids_of_a_text(n_bytes, width, n_vocab):
    text = TextSize.in_pairs(n_bytes, width)
    assert text.n_vocab == n_vocab
    assert text.bytes_per_token == pytest.approx(0.36 * math.log(n_vocab))


@pytest.mark.parametrize(
    ("width", "n_layers", "n_heads", "n_kv_heads", "d_ff"),
    [
        (64, 2, 2, 1, 168),
        (96, 2, 3, 3, 256),
        (192, 2, 6, 3, 512),
        (200, 2, 5, 5, 536),  # six heads do not divide this width
        (768, 10, 12, 6, 2048),
    ],
)
def test_sizes_of_a_width(width, n_layers, n_heads, n_kv_heads, d_ff):
    assert law.sizes_for_width(width) == {
        "d_model": width,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "d_ff": d_ff,
    }


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_makes_a_model(width):
    preset("qwen_tiny", vocab_size=256, **law.sizes_for_width(width))


def test_weights_of_the_blocks():
    # Of width 8: queries and output 8 * 8 each, keys and values 8 * 4 each, three matrices of the MLP of 8 * 16 each,
    # two norms of 8 gains, and two of the 4 numbers of a head.
    of_block = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16 + 2 * 8 + 2 * 4
    config = preset(
        "qwen_tiny", vocab_size=64, d_model=8, n_layers=3, n_heads=2, n_kv_heads=1, d_ff=16
    )
    assert law.n_block_weights(config) == 3 * of_block


@pytest.mark.parametrize(
    ("seconds", "of_validation", "most", "n_steps", "val_every"),
    [
        (100, 0.6, 10_000, 952, 119),  # eight validations fit into a twentieth of the time
        (1000, 0.6, 10_000, 9880, 494),  # at most twenty validations
        (100, 3.83, 10_000, 846, 212),  # four take less than a fifth of the time
        (20, 3.83, 10_000, 161, 161),  # only one takes less than a fifth of the time
        (100, 0.6, 80, 80, 10),
    ],
)
def test_steps_that_fill_a_time(seconds, of_validation, most, n_steps, val_every):
    assert timing.steps_that_fit(seconds, 0.1, of_validation, most=most) == (n_steps, val_every)


def test_a_small_text_is_passed_40_times_or_for_100_steps():
    # 40 * 20,480 bytes in tokens of 2 bytes are 409,600 tokens, which are 200 steps.
    def most(n_bytes, open_keys=OPEN):
        text = TextSize(n_bytes=n_bytes, n_vocab=256, bytes_per_token=2.0)
        return ladder.most_useful_steps(TRAINER, open_keys, text, 2048)

    assert (most(20_480), most(1024)) == (200, 100)
    assert most(20_480, OPEN - {"trainer.max_steps"}) == TRAINER.max_steps


def test_a_byte_that_is_read_again_is_worth_less():
    text = TextSize.in_pairs(1_000_000, 128)
    assert [text.worth(n_bytes) for n_bytes in (5e5, 1e6)] == [5e5, 1e6]
    # 15.4 * (1 - exp(-3 / 15.4)) = 2.726
    assert text.worth(4e6) == pytest.approx(3.726e6, rel=1e-3)
    assert text.worth(1e9) == pytest.approx(16.4e6)


# Measuring a step


class SlowMachine:
    """On this machine, a micro-step takes 3 s, the update of the optimizer 2 s, and compiling 50 s."""

    def __init__(self, monkeypatch):
        self.now = 0
        self.shapes = []  # shape of each micro-step
        monkeypatch.setattr(timing, "clock", lambda device: self.now)

    def measure(self, n_micro_steps, *, seconds, is_compiled):
        machine = self
        model = new_gpt(QWEN, seed=0)

        class Slow(torch.optim.SGD):
            def step(self):
                machine.now += 2

        def compute_loss(tokens, *others):
            self.now += 3 if self.shapes or not is_compiled else 53
            self.shapes.append(tuple(tokens.shape))
            return model(tokens).sum()

        return timing.measure_step(
            model,
            compute_loss,
            lambda model: Slow(model.parameters()),
            replace(TRAINER, batch_size=4, global_batch_size=4 * n_micro_steps),
            replace(choose_hardware("cpu", "fp32", False), compile=is_compiled),
            seconds=seconds,
        )


@pytest.mark.parametrize(
    ("n_micro_steps", "seconds", "is_compiled", "measured", "shapes"),
    [
        (1, 0, False, (5, 5), [(1, 128), (4, 128)]),
        (2, 0, False, (8, 5), [(1, 128), (4, 128), (4, 128)]),
        # A step of many micro-steps is measured with two of them.
        (1000, 0, False, (3002, 5), [(1, 128), (4, 128), (4, 128)]),
        # Two steps of 8 s take more than 10 s. Compiled code suits only one shape.
        (2, 10, True, (8, 55), [(4, 128)] * 5),
    ],
)
def test_a_step_is_measured_with_few_micro_steps_after_a_warm_up(
    monkeypatch, n_micro_steps, seconds, is_compiled, measured, shapes
):
    machine = SlowMachine(monkeypatch)
    found = machine.measure(n_micro_steps, seconds=seconds, is_compiled=is_compiled)
    assert (found, machine.shapes) == (measured, shapes)


# The ladder


def climb(seconds, text_of=None, *, kept=(), trainer=TRAINER, **sizes):
    model = asdict(preset("qwen_tiny", vocab_size=1, **sizes))
    del model["vocab_size"]
    optimizer = SimpleNamespace(build=lambda model: torch.optim.AdamW(model.parameters()))
    settings = SimpleNamespace(model=ModelSettings(**model), trainer=trainer, optimizer=optimizer)
    text_of = text_of or partial(TextSize.in_pairs, LARGE)
    return ladder.climb_ladder(settings, OPEN - {*kept}, text_of, seconds)


def widths(rungs):
    return [rung.config.d_model for rung in rungs]


@pytest.fixture
def machine(monkeypatch):
    """A machine that trains a thousand weights on a million tokens in a second."""

    def seconds_a_step(settings, config, trainer):
        n_weights = law.n_block_weights(config) + config.vocab_size * config.d_model
        return 1e-9 * n_weights * trainer.global_batch_size * config.context_length

    monkeypatch.setattr(ladder, "_seconds_a_step", seconds_a_step)
    return seconds_a_step


def test_the_climb_ends_behind_the_best_width(machine):
    rungs = climb(10_000)
    losses = [rung.loss for rung in rungs]
    assert widths(rungs) == [*WIDTHS[: len(losses)]]
    assert 2 < len(losses) < len(WIDTHS)
    assert losses[:-1] == sorted(losses[:-1], reverse=True)
    assert losses[-1] > losses[-2]
    assert ladder.best_rung(rungs) is rungs[-2]


def test_more_time_gives_a_wider_model_and_larger_steps(machine):
    best = [ladder.best_rung(climb(seconds)).config.d_model for seconds in (1000, 10_000, 100_000)]
    assert best[0] < best[1] < best[2]
    for rung in climb(10) + climb(100_000):
        n_tokens = rung.global_batch_size * rung.config.context_length
        assert rung.n_steps <= ladder.MANY_STEPS
        assert n_tokens == 2048 or rung.n_steps > ladder.MANY_STEPS / 2


def test_a_width_that_does_not_fit_into_memory_ends_the_climb(machine, monkeypatch):
    most = 192

    def seconds_a_step(settings, config, trainer):
        if config.d_model >= most:
            raise torch.OutOfMemoryError("the memory is full")
        return machine(settings, config, trainer)

    monkeypatch.setattr(ladder, "_seconds_a_step", seconds_a_step)
    assert widths(climb(100_000)) == [96, 128]
    most = 96
    with pytest.raises(torch.OutOfMemoryError):
        climb(100_000)


def test_what_is_kept_stays(machine):
    kept = ("model.d_model", "model.n_layers", "model.context_length", "trainer.global_batch_size")
    (rung,) = climb(10**6, kept=kept, d_model=128, n_layers=5, context_length=100)
    config = rung.config
    assert (config.d_model, config.n_layers, config.context_length) == (128, 5, 100)
    assert rung.global_batch_size == 16


def test_heads_that_are_kept_decide_the_widths(machine):
    rungs = climb(10_000, kept=("model.n_heads",), n_heads=4)
    assert widths(rungs)[:2] == [96, 128]
    assert {(rung.config.n_heads, rung.config.n_kv_heads) for rung in rungs} == {(4, 2)}

    # Widths 96 and 128 have 3 and 4 heads. Three heads cannot share two key-value heads.
    assert widths(climb(60, kept=("model.n_kv_heads",), n_kv_heads=2))[0] == 128
    with pytest.raises(ValidationError):
        climb(60, kept=("model.n_kv_heads", "model.d_model"), n_kv_heads=2, d_model=96)


def test_a_small_text_limits_weights_and_passes(machine):
    # 200,000 bytes allow 1,600,000 weights: two blocks of width 192 have 812,000, three of width 256 have 2,158,000.
    rungs = climb(10**9, partial(TextSize.in_pairs, 200_000))
    assert widths(rungs) == [96, 128, 192]
    n_tokens = rungs[-1].n_steps * 2048
    assert n_tokens * 0.36 * math.log(1000) == pytest.approx(40 * 200_000)


@pytest.mark.parametrize(("width", "is_bf16"), [(256, False), (384, True)])
def test_a_step_is_timed_in_the_batch_size_recomputing_and_precision_of_its_run(
    monkeypatch, width, is_bf16
):
    measured = []

    def measure_step(model, compute_loss, make_optimizer, trainer, hardware):
        recomputes = "forward" in vars(model.blocks[0])  # recompute_activations replaces the method
        measured.append((trainer.batch_size, recomputes, hardware.precision == "bf16"))
        return 1.0, 0.0

    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(timing, "measure_step", measure_step)
    own = replace(TRAINER, batch_size=2, checkpoint_activations=True, precision="auto")
    climb(100, kept=("model.d_model", "model.n_layers"), trainer=own, d_model=width, n_layers=1)
    assert measured == [(2, True, is_bf16)]
