"""The rules behind budget=, by hand: the scaling law, the sizes of a width, and the steps in a time."""

import math
from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest
import torch

from gptmini.hardware import choose_hardware
from gptmini.model import ModelSettings, new_gpt, preset
from gptmini.training import TrainerSettings
from gptmini.training.budget import law, search, timing
from gptmini.training.budget.law import Text
from gptmini.training.budget.search import WIDTHS, Search

TRAINER = TrainerSettings(
    max_steps=500,
    max_time=None,
    max_bad_steps=10,
    global_batch_size=16,
    batch_size="auto",
    gradient_clip=1.0,
    val_every_steps=200,
    val_tokens=60_000,
    device="cpu",
    devices=1,
    num_nodes=1,
    strategy="auto",
    checkpoint_activations=False,
    timeout=600,
    requeue=False,
    precision="fp32",
    compile=False,
    threads=None,
)
QWEN = preset("qwen_tiny", vocab_size=256)
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
        (200_000, 128, 2000),
        (2_000_000, 128, 4000),  # 2000 * 10 ** 0.3 = 3991
        (20_000_000, 128, 8000),  # 2000 * 100 ** 0.3 = 7962
        (5 * 10**9, 192, 8000),  # 50 * 192 = 9600
        (5 * 10**9, 1024, 32_000),
        (2000, 128, 512),
    ],
)
def test_ids_of_a_text(n_bytes, width, n_vocab):
    text = Text.in_pairs(n_bytes, width)
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
    ("seconds", "n_val_tokens", "most", "n_steps", "val_every"),
    [
        # A validation of 6,144 tokens takes a third of three steps, 0.1 s, plus 0.5 s for its sample. Eight validations
        # fit into a twentieth of 100 s, and take 4.8 s.
        (100, 6144, 10_000, 952, 119),
        (1000, 6144, 10_000, 9880, 494),  # at most twenty validations
        (
            100,
            204_800,
            10_000,
            846,
            212,
        ),  # one takes 3.83 s; four take less than a fifth of the time
        (20, 204_800, 10_000, 161, 161),  # only one takes less than a fifth of the time
        (100, 6144, 80, 80, 10),
    ],
)
def test_steps_that_fill_a_time(seconds, n_val_tokens, most, n_steps, val_every):
    steps = timing.steps_that_fit(
        seconds, 0.1, most=most, tokens_a_step=2048, n_val_tokens=n_val_tokens
    )
    assert steps == (n_steps, val_every)


@pytest.mark.parametrize(("n_bytes", "n_steps"), [(204_800, 200), (10_240, 100)])
def test_a_small_text_is_passed_four_times_or_for_100_steps(n_bytes, n_steps):
    # 4 * 204,800 bytes in tokens of 2 bytes are 409,600 tokens, which are 200 steps.
    text = Text(n_bytes=n_bytes, n_vocab=256, bytes_per_token=2.0)
    assert searched(1000).most_steps(text, 2048) == n_steps


def test_steps_that_are_kept_are_taken():
    search = searched(10**9, kept=("trainer.max_steps",))
    assert {candidate.n_steps for candidate in search.candidates(large)} == {TRAINER.max_steps}


@pytest.mark.slow
def test_a_model_is_compared_by_its_fastest_step_but_the_first(monkeypatch):
    seconds = [1, 5, 3]  # of the warm-up and of two steps
    ticks = iter([tick for length in seconds for tick in (0, length)])  # start and end of each
    monkeypatch.setattr(timing, "clock", lambda device: next(ticks))
    search = searched(10_000, kind=Search)
    assert search._seconds_a_step(QWEN, TRAINER) == 3


def test_a_measurement_of_a_slow_model_ends_early(monkeypatch):
    ticks = iter([0, 50, 0, 40])
    monkeypatch.setattr(timing, "clock", lambda device: next(ticks))
    assert searched(100, kind=Search)._seconds_a_step(QWEN, TRAINER) == 40


class SlowMachine:
    """On this machine, a micro-step takes 3 s, and the update of the optimizer takes 2 s."""

    def __init__(self, monkeypatch, seconds_to_compile=0):
        self.now = 0
        self.shapes = []  # shape of each micro-step
        self.seconds_to_compile = seconds_to_compile
        monkeypatch.setattr(timing, "clock", lambda device: self.now)
        self.model = new_gpt(QWEN, seed=0)

    def compute_loss(self, tokens, targets):
        if not self.shapes:
            self.now += self.seconds_to_compile
        self.now += 3
        self.shapes.append(tuple(tokens.shape))
        return self.model(tokens).sum()

    def measure(self, n_micro_steps, **options):
        machine = self

        class Slow(torch.optim.SGD):
            def step(self):
                machine.now += 2

        return timing.times_of_steps(
            self.model,
            self.compute_loss,
            Slow(self.model.parameters()),
            batch_size=4,
            n_micro_steps=n_micro_steps,
            is_bf16=False,
            least=3.0,
            most=20.0,
            **options,
        )


@pytest.mark.parametrize(("n_micro_steps", "seconds"), [(1, 5), (2, 8), (1000, 3002)])
def test_a_step_of_many_micro_steps_is_measured_with_few_of_them(
    monkeypatch, n_micro_steps, seconds
):
    """On this machine, a micro-step takes 3 s, and the update of the optimizer takes 2 s."""
    machine = SlowMachine(monkeypatch)
    times, _ = machine.measure(n_micro_steps)
    assert set(times) == {seconds}
    assert len(machine.shapes) <= 5


def test_the_warm_up_takes_one_sequence_unless_it_compiles_the_loss(monkeypatch):
    """Compiling takes 50 s. These seconds belong to the warm-up, and the time for steps starts after it."""
    eager = SlowMachine(monkeypatch)
    times, warm_up = eager.measure(2)
    assert (set(times), warm_up) == ({8}, 5)
    assert eager.shapes == [(1, 128), *[(4, 128)] * 4]

    compiled = SlowMachine(monkeypatch, seconds_to_compile=50)
    times, warm_up = compiled.measure(2, is_compiled=True)
    assert (set(times), warm_up) == ({8}, 55)
    assert compiled.shapes == [(4, 128)] * 5


@pytest.mark.parametrize("limit", [3007, 3008])
def test_a_step_that_cannot_fit_is_refused_after_one_micro_step(monkeypatch, limit):
    """The warm-up takes 5 s, a micro-step 3 s, and at least 1,000 micro-steps follow."""
    machine = SlowMachine(monkeypatch)
    if limit == 3008:
        machine.measure(1000, limit=limit)
        return
    with pytest.raises(timing.TooSlow) as error:
        machine.measure(1000, limit=limit)
    assert error.value.seconds == 3000
    assert machine.now == 8


def test_the_search_ends_at_a_width_whose_step_does_not_fit():
    class Small(Machine):
        most = 192

        def _seconds_a_step(self, config, trainer):
            if config.d_model >= self.most:
                raise timing.TooSlow(1e6)
            return super()._seconds_a_step(config, trainer)

    candidates = searched(100_000, kind=Small).candidates(large)
    assert [candidate.config.d_model for candidate in candidates] == [96, 128]

    class Smallest(Small):
        most = 0

    with pytest.raises(timing.TooSlow):
        searched(100_000, kind=Smallest).candidates(large)


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "n_steps"), [(100, 3), (36_000, 60)])
def test_the_chosen_model_is_measured_for_three_percent_of_the_time_or_a_minute(
    monkeypatch, seconds, n_steps
):
    ticks = iter(range(2 * (n_steps + 1)))  # one second per step, and a warm-up step
    monkeypatch.setattr(timing, "clock", lambda device: next(ticks))
    module = Mock(model=new_gpt(QWEN, seed=0))
    module.settings = Mock(micro_batch_size=1, n_micro_steps=1)
    module.compute_loss = lambda tokens, targets: module.model(tokens).sum()
    module.make_optimizer = lambda model: torch.optim.AdamW(model.parameters())
    hardware = choose_hardware("cpu", "fp32", False, 1)
    assert timing.seconds_of_step(module, hardware, seconds=seconds) == (1, 1)
    assert not list(ticks)


# The search


class Machine(Search):
    """A search on a machine that trains a thousand weights on a million tokens in a second."""

    def _seconds_a_step(self, config, trainer):
        n_weights = law.n_block_weights(config) + config.vocab_size * config.d_model
        return 1e-9 * n_weights * trainer.global_batch_size * config.context_length


def searched(seconds, *, kept=(), kind=Machine, **sizes):
    model = asdict(preset("qwen_tiny", vocab_size=1, **sizes))
    del model["vocab_size"]
    return kind(
        model=ModelSettings(**model),
        trainer=TRAINER,
        make_optimizer=lambda model: torch.optim.AdamW(model.parameters()),
        hardware_for=lambda width: choose_hardware("cpu", "auto", False, 1, width=width),
        is_open=lambda key: key not in kept,
        seconds=seconds,
    )


def large(width):
    return Text.in_pairs(LARGE, width)


def test_each_width_is_measured_in_the_precision_of_its_run(monkeypatch):
    is_bf16 = {}

    def times(model, *arguments, **options):
        is_bf16[model.config.d_model] = options["is_bf16"]
        return [1e-3], 0.0

    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(search, "times_of_steps", times)
    for width in (256, 384):
        searched(600.0, kind=Search)._seconds_a_step(replace(QWEN, d_model=width), TRAINER)
    assert is_bf16 == {256: False, 384: True}


def test_the_search_ends_behind_the_best_width():
    candidates = searched(10_000).candidates(large)
    losses = [candidate.loss for candidate in candidates]
    assert [candidate.config.d_model for candidate in candidates] == [*WIDTHS[: len(losses)]]
    assert 2 < len(losses) < len(WIDTHS)
    assert losses[:-1] == sorted(losses[:-1], reverse=True)
    assert losses[-1] > losses[-2]
    assert search.best_of(candidates) is candidates[-2]


def test_a_slow_moment_does_not_decide():
    class SlowAtFirst(Machine):
        def _seconds_a_step(self, config, trainer):
            seconds = super()._seconds_a_step(config, trainer)
            return seconds if self.fastest else 100 * seconds

    slow = searched(10_000, kind=SlowAtFirst)
    assert slow.candidates(large) == searched(10_000).candidates(large)


def test_only_steps_that_may_be_taken_are_measured_again():
    measured = []

    class Counting(Machine):
        def _seconds_a_step(self, config, trainer):
            measured.append((config, trainer.global_batch_size))
            return super()._seconds_a_step(config, trainer)

    candidates = searched(100_000, kind=Counting).candidates(large)
    taken = [(candidate.config, candidate.global_batch_size) for candidate in candidates]
    assert {sizes for sizes in measured if measured.count(sizes) > 1} == set(taken)


def test_a_width_that_does_not_fit_into_memory_ends_the_search():
    class Small(Machine):
        most = 192

        def _seconds_a_step(self, config, trainer):
            if config.d_model >= self.most:
                raise torch.OutOfMemoryError("the memory is full")
            return super()._seconds_a_step(config, trainer)

    candidates = searched(100_000, kind=Small).candidates(large)
    assert [candidate.config.d_model for candidate in candidates] == [96, 128]

    class Smallest(Small):
        most = 0

    with pytest.raises(torch.OutOfMemoryError):
        searched(100_000, kind=Smallest).candidates(large)


def test_the_search_takes_fifteen_percent_of_the_time(monkeypatch):
    n_unhurried = len(searched(100_000).candidates(large))
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    class Slow(Machine):
        def _seconds_a_step(self, config, trainer):
            now[0] += 6_000
            return super()._seconds_a_step(config, trainer)

    # Each measurement takes 6 % of the time. Three of them take more than 15 %.
    slow = searched(100_000, kind=Slow)
    object.__setattr__(slow, "began", 0.0)
    candidates = slow.candidates(large)
    assert now[0] == 18_000
    assert 1 <= len(candidates) < n_unhurried


def test_the_batch_size_and_the_recomputing_of_the_user_are_measured(monkeypatch):
    measured = []

    def times_of_steps(model, compute_loss, optimizer, **options):
        recomputes = "forward" in vars(model.blocks[0])  # recompute_activations replaces the method
        measured.append((options["batch_size"], recomputes))
        return [1.0], 0.0

    monkeypatch.setattr(search, "times_of_steps", times_of_steps)
    own = replace(TRAINER, batch_size=2, checkpoint_activations=True)
    replace(searched(100, kind=Search), trainer=own).candidates(large)
    assert set(measured) == {(2, True)}


def test_more_time_gives_a_wider_model():
    def best(seconds):
        return search.best_of(searched(seconds).candidates(large)).config.d_model

    assert best(1000) < best(10_000) < best(100_000)


def test_steps_grow_with_the_time():
    for seconds in (10, 1000, 100_000):
        for candidate in searched(seconds).candidates(large):
            n_tokens = candidate.global_batch_size * candidate.config.context_length
            assert candidate.n_steps <= search.MANY_STEPS
            assert n_tokens == 2048 or candidate.n_steps > search.MANY_STEPS / 2


def test_what_is_kept_stays():
    kept = ("model.d_model", "model.n_layers", "model.context_length", "trainer.global_batch_size")
    search = searched(10**6, kept=kept, d_model=128, n_layers=5, context_length=100)
    (candidate,) = search.candidates(large)
    config = candidate.config
    assert (config.d_model, config.n_layers, config.context_length) == (128, 5, 100)
    assert candidate.global_batch_size == 16


def test_heads_that_are_kept_have_half_as_many_keys():
    candidates = searched(10_000, kept=("model.n_heads",), n_heads=4).candidates(large)
    assert [candidate.config.d_model for candidate in candidates][:2] == [96, 128]
    assert {(one.config.n_heads, one.config.n_kv_heads) for one in candidates} == {(4, 2)}


def test_widths_that_do_not_fit_are_passed_over():
    search = searched(60, kept=("model.n_kv_heads",), n_kv_heads=2)
    # Widths 96 and 128 have 3 and 4 heads, and so on. Three heads cannot share two key-value heads.
    widths = [candidate.config.d_model for candidate in search.candidates(large)]
    assert widths[0] == 128


def test_a_small_text_limits_weights_and_passes_and_asks_for_dropout():
    # 200,000 bytes allow 1,600,000 weights: two blocks of width 192 have 812,000, three of width 256 have 2,158,000.
    candidates = searched(10**9).candidates(lambda width: Text.in_pairs(200_000, width))
    assert [candidate.config.d_model for candidate in candidates] == [96, 128, 192]
    assert [candidate.config.dropout for candidate in candidates] == [0.1, 0.1, 0.1]
    assert {candidate.config.dropout for candidate in searched(1000).candidates(large)} == {0}
    n_tokens = candidates[-1].n_steps * 2048
    assert n_tokens * 0.36 * math.log(2000) == pytest.approx(800_000)
