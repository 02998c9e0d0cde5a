"""Batch order as a pure function: complete passes, any number of ranks, constant cost."""

import math
from functools import partial
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import gptmini
from gptmini.data.prepared.batches import gather, validation_windows
from gptmini.data.prepared.ids import cut_windows
from gptmini.data.prepared.order import (
    divide_among,
    seed_of_source,
    step_sequences,
    window_starts,
)
from gptmini.data.prepared.store import TokenSource
from gptmini.training.datamodule import TokenDataModule
from gptmini.training.trainer_settings import TrainerSettings
from training.runs import SETTINGS

SEEDS = st.integers(0, 2**63 - 1)


def starts_of_pass(number, *, n_tokens, context_length, seed):
    windows = n_tokens // context_length - 1
    sequences = np.arange(number * windows, (number + 1) * windows)
    return window_starts(sequences, n_tokens=n_tokens, context_length=context_length, seed=seed)


@given(n_tokens=st.integers(14, 8000), number=st.integers(0, 99), seed=SEEDS)
@example(n_tokens=14, number=0, seed=0)
@example(n_tokens=20, number=0, seed=0)
@example(n_tokens=21, number=0, seed=0)
def test_a_pass_covers_every_window_once(n_tokens, number, seed):
    starts = np.sort(starts_of_pass(number, n_tokens=n_tokens, context_length=7, seed=seed))
    phase = starts[0]

    assert 0 <= phase < 7
    assert starts.tolist() == list(range(phase, phase + 7 * len(starts), 7))
    assert starts[-1] + 7 + 1 <= n_tokens  # the last target is in the file
    # Another window would not fit after the largest phase.
    assert n_tokens < (len(starts) + 2) * 7


@pytest.mark.parametrize("n_tokens", [0, 1, 7, 13])
def test_a_file_shorter_than_two_windows_is_refused(n_tokens):
    wanted = rf"model.context_length=7 requires 14 training tokens, got {n_tokens}; "
    with pytest.raises(ValueError, match=wanted):
        window_starts(np.arange(3), n_tokens=n_tokens, context_length=7, seed=0)


def mixed(value, key):
    """Compute the finaliser of SplitMix64 with a key, in Python integers."""
    x = (value * 0x9E3779B97F4A7C15 + key * 0xD1342543DE82EF95 + 0x632BE59BD9B4E019) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def start_by_hand(sequence, *, n_tokens, context_length, seed):
    """Return the first token of the window of a single sequence."""
    windows = n_tokens // context_length - 1
    number, place = divmod(sequence, windows)
    key = mixed(number, seed)

    n_left = math.isqrt(windows - 1) + 1
    n_right = -(-windows // n_left)
    while True:
        left, right = divmod(place, n_right)
        for i in range(6):
            if i % 2 == 0:
                left = (left + mixed(right, key + i)) % n_left
            else:
                right = (right + mixed(left, key + i)) % n_right
        place = left * n_right + right
        if place < windows:
            return mixed(key, 1) % context_length + context_length * place


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
def test_the_order_is_that_of_the_formula_which_later_versions_must_keep(seed):
    """A later version must resume a run with the same order."""
    sizes = {"n_tokens": 1000, "context_length": 7, "seed": seed}
    sequences = [0, 1, 2, 140, 141, 5000, 10**12]
    expected = [start_by_hand(sequence, **sizes) for sequence in sequences]
    assert window_starts(np.array(sequences), **sizes).tolist() == expected


@pytest.mark.parametrize("n_ranks", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 6])
def test_the_global_batch_is_the_same_on_any_ranks_and_micro_steps(n_ranks, batch_size):
    n_micro_steps = 24 // (batch_size * n_ranks)
    sizes = {"global_batch_size": 24, "batch_size": batch_size, "n_ranks": n_ranks}

    for step in (0, 1, 77):
        slices = []
        for rank in range(n_ranks):
            for micro_step in range(n_micro_steps):
                slices.append(step_sequences(step, micro_step, rank=rank, **sizes))

        assert {len(part) for part in slices} == {batch_size}
        assert np.concatenate(slices).tolist() == list(range(24 * step, 24 * step + 24))


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_targets_are_tokens_shifted_by_one(dtype):
    data = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 40000], dtype=dtype)
    tokens, targets = gather(data, np.array([5, 0]), 4)

    assert tokens.tolist() == [[9, 2, 6, 5], [3, 1, 4, 1]]
    assert targets.tolist() == [[2, 6, 5, 40000], [1, 4, 1, 5]]
    assert tokens.dtype == targets.dtype == torch.int64


@pytest.mark.parametrize("max_tokens", [None, 1, 4, 5, 12, 10**6])
@pytest.mark.parametrize("n_tokens", [2, 5, 6, 7, 30, 31, 32, 34, 41])
def test_validation_predicts_every_target_once_in_order(n_tokens, max_tokens):
    data = np.arange(n_tokens, dtype=np.uint16)
    n_targets = min(n_tokens - 1, max_tokens or n_tokens)
    batches = list(validation_windows(data, context_length=5, batch_size=3, max_tokens=max_tokens))

    for tokens, targets in batches:
        assert torch.equal(targets, tokens + 1)  # the ids count up
    every_target = torch.cat([targets.flatten() for _, targets in batches])
    assert every_target.tolist() == list(range(1, n_targets + 1))

    widths = [tokens.shape[1] for tokens, _ in batches]
    assert set(widths[:-1]) <= {5}
    assert widths[-1] == (n_targets % 5 or 5)
    assert all(tokens.shape[0] <= 3 for tokens, _ in batches)


@pytest.mark.parametrize("weights", [(1,), (3, 7), (1, 1, 5), (40, 2)])
def test_each_block_takes_its_weight_from_every_source_and_every_sequence_once(weights):
    size = sum(weights)
    n_blocks = 18
    which, own = divide_among(np.arange(size * n_blocks), weights, seed=5)

    for block in range(n_blocks):
        taken = which[block * size : (block + 1) * size].tolist()
        assert [taken.count(place) for place in range(len(weights))] == list(weights)
    for place, weight in enumerate(weights):
        assert sorted(own[which == place].tolist()) == list(range(weight * n_blocks))
    assert size == 1 or len({*map(tuple, which.reshape(n_blocks, size).tolist())}) > 1
    # Any slice of sequences has the same sources, so that the mixture does not depend on the number of ranks.
    some = np.array([17, 3, size * n_blocks - 1])
    assert divide_among(some, weights, seed=5)[0].tolist() == which[some].tolist()
    assert divide_among(some, weights, seed=5)[1].tolist() == own[some].tolist()


def test_the_only_source_has_the_order_of_the_run():
    assert set(divide_among(np.arange(99), [4], seed=3)[0].tolist()) == {0}
    assert divide_among(np.arange(99), [1], seed=3)[1].tolist() == list(range(99))
    assert [seed_of_source(7, place) for place in (0, 0)] == [7, 7]
    assert len({seed_of_source(7, place) for place in range(50)}) == 50


def store_of(*sources):
    """Return a store of given training tokens with one or more sources."""
    ids = np.arange(sum(n for _, n in sources), dtype=np.uint16)
    return SimpleNamespace(
        sources=[TokenSource(f"{i}", weight, n) for i, (weight, n) in enumerate(sources)],
        longest_context=20,
        n_tokens=lambda split: len(ids),
        training_windows=partial(cut_windows, ids),
    )


@pytest.mark.parametrize("sources", [[(1, 211)], [(3, 211), (1, 97), (2, 40)]])
@pytest.mark.parametrize("start_step", [0, 7])
def test_batches_of_ones_own_loop_are_those_of_a_run(sources, start_step):
    store = store_of(*sources)
    settings = TrainerSettings(**SETTINGS | {"global_batch_size": 6, "batch_size": 3})
    module = TokenDataModule(store, settings, context_length=5, seed=9)
    module.trainer = SimpleNamespace(
        global_step=start_step,
        global_rank=0,
        world_size=1,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
    )
    micro_batches = islice(module.train_dataloader(), 2 * 50)
    of_run = torch.stack([torch.stack(batch) for batch in micro_batches])  # (2 * 50, 2, 3, 5)

    own = gptmini.batches(store, batch_size=6, context_length=5, seed=9, start_step=start_step)
    steps = torch.stack([torch.stack(batch) for batch in islice(own, 50)])  # (50, 2, 6, 5)
    by_micro_step = steps.unflatten(2, (2, 3)).transpose(1, 2).flatten(0, 1)  # (2 * 50, 2, 3, 5)
    assert torch.equal(by_micro_step, of_run)
