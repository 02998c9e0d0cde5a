"""Compute the training tokens of each step as a pure function of (seed, step).

Therefore a run can resume without the state of a data loader.

A pass covers every window of the training tokens once. Pass p shifts the windows by a phase and shuffles the windows.
The phase and the order depend only on (seed, p). If a pass has W windows, then sequence n of the run is window n mod W
of pass n div W.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Annotated

import numpy as np
import torch
from pydantic import ConfigDict, Field, PositiveInt, SkipValidation, validate_call
from torch import Tensor

from gptmini.data.prepared.ids import Ids
from gptmini.data.prepared.store import Source, TokenStore
from gptmini.settings import STRICT, Seed
from gptmini.system.errors import UserError

# Rounds of the Feistel network. Four rounds already give a pseudorandom permutation (Luby and Rackoff 1988).
ROUNDS = 6
# The loss ignores targets with this value. The value is the default ignore_index of torch's cross_entropy.
NOT_COUNTED = -100
_U64 = np.uint64
# This number is hashed with the seed to make the keys of blocks. The keys of passes are made from small numbers.
# Therefore the keys of blocks and the keys of passes are different.
BLOCK_ORDER = np.array([2**63], dtype=_U64)


@validate_call(config=ConfigDict(**STRICT, arbitrary_types_allowed=True))
def batches(
    store: SkipValidation[TokenStore],
    *,
    batch_size: PositiveInt,
    context_length: PositiveInt,
    seed: Seed,
    start_step: Annotated[int, Field(ge=0)] = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield training batches forever. A run with this seed and this global batch size has the same batches.

    Args:
        store: prepared tokens, or a mixture.
        batch_size: B, sequences per batch.
        context_length: T, tokens per sequence.
        seed: seed of the order of the windows.
        start_step: step of the first batch.

    Yields pairs of tokens and targets. The targets are shifted by one. Both tensors are int64 (B, T).
    Raises UserError if a source has fewer than 2 T training tokens, or if a token file has changed.
    """
    tokens = store.tokens("train")
    for step in count(start_step):
        first = step * batch_size
        sequences = np.arange(first, first + batch_size, dtype=np.int64)
        starts = starts_in_sources(
            sequences,
            store.sources,
            context_length=context_length,
            seed=seed,
        )
        store.check_size("train")
        windows = cut_windows(tokens, starts, context_length)
        store.check_ids("train", windows)
        yield shifted(windows)


def starts_in_sources(
    sequences: np.ndarray, sources: Sequence[Source], *, context_length: int, seed: int
) -> np.ndarray:
    """Return the position of the first token of each sequence, int64 (n,).

    `sequences` are sequence numbers of the run, int64 (n,), counted from 0. Positions refer to the concatenated tokens
    of all sources. Raises UserError if a source has fewer than 2 context_length tokens.
    """
    which, numbers = divide_among(sequences, [source.weight for source in sources], seed=seed)

    starts = np.empty_like(numbers)
    n_before = 0  # tokens of the sources before the current one
    for place, source in enumerate(sources):
        chosen = which == place
        starts[chosen] = n_before + window_starts(
            numbers[chosen],
            n_tokens=source.n_tokens,
            context_length=context_length,
            seed=seed_of_source(seed, place),
        )
        n_before += source.n_tokens
    return starts


def n_windows(n_tokens: int, context_length: int) -> int:
    """Return the number of windows in a pass, for which the tokens suffice with every phase below context_length."""
    return max(0, (n_tokens - context_length) // context_length)


def divide_among(
    sequences: np.ndarray, weights: Sequence[int], *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the source of each sequence of the run, and the number of the sequence within that source.

    The sequences form blocks of as many sequences as the sum of the weights. A source with weight w has w sequences in
    each block. The order in a block depends only on (seed, block).

    `sequences` are sequence numbers of the run, int64 (n,). All numbers are counted from 0. Returns two arrays,
    int64 (n,): the index of the source in `weights`, and the number of the sequence in this source.
    """
    ends = np.cumsum(weights)  # end of the places of each source in a block
    size = int(ends[-1])
    numbers = np.asarray(sequences, dtype=np.int64)
    blocks, places = np.divmod(numbers, size)

    keys = _mix(blocks.astype(_U64), _mix(BLOCK_ORDER, _U64(seed % 2**64)))
    places = permute(places, size, keys)
    which = np.searchsorted(ends, places, side="right")
    own_weights = np.asarray(weights, dtype=np.int64)[which]
    return which, blocks * own_weights + places - (ends[which] - own_weights)


def seed_of_source(seed: int, place: int) -> int:
    """Return the seed of the source with the index `place`, counted from 0."""
    if place == 0:
        return seed
    return int(_mix(np.array([place], dtype=_U64), _U64(seed % 2**64))[0])


def window_starts(
    sequences: np.ndarray, *, n_tokens: int, context_length: int, seed: int
) -> np.ndarray:
    """Return the position of the first token of each sequence, int64 (n,).

    `sequences` are sequence numbers of the source, int64 (n,), counted from 0. A window contains T = context_length
    tokens and their T targets, so start + T + 1 <= n_tokens. The running time does not depend on the sequence numbers.
    Raises UserError if there are fewer than 2 T tokens.
    """
    windows_per_pass = n_windows(n_tokens, context_length)
    if windows_per_pass < 1:
        raise UserError(
            f"the train split must have at least two windows of context_length={context_length} tokens, "
            f"got {n_tokens} tokens; give more text, or lower model.context_length"
        )

    numbers = np.asarray(sequences, dtype=np.int64)
    passes, places = np.divmod(numbers, windows_per_pass)
    keys = _mix(passes.astype(_U64), _U64(seed % 2**64))
    phases = (_mix(keys, _U64(1)) % _U64(context_length)).astype(np.int64)
    return phases + context_length * permute(places, windows_per_pass, keys)


def permute(places: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Permute places, int64 (n,) in [0, size). The key of each place, uint64 (n,), selects a permutation.

    Each place takes O(1) memory and time. An alternating Feistel network permutes the pairs (left, right) of a grid
    that is slightly larger than size. A result outside [0, size) is permuted until the result is inside (cycle
    walking).
    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", sections 3 and 4.
    """
    n_left = int(np.ceil(np.sqrt(size)))
    n_right = -(-size // n_left)

    result = np.array(places, dtype=np.int64)
    outside = np.arange(result.size)
    while outside.size:
        left, right = np.divmod(result[outside], n_right)
        key = keys[outside]
        for i in range(ROUNDS):
            round_key = key + _U64(i)
            if i % 2:
                shift = _mix(left.astype(_U64), round_key) % _U64(n_right)
                right = (right + shift.astype(np.int64)) % n_right
            else:
                shift = _mix(right.astype(_U64), round_key) % _U64(n_left)
                left = (left + shift.astype(np.int64)) % n_left
        result[outside] = left * n_right + right
        outside = outside[result[outside] >= size]
    return result


def step_sequences(
    step: int,
    micro_step: int,
    *,
    global_batch_size: int,
    batch_size: int,
    rank: int,
    n_ranks: int,
) -> np.ndarray:
    """Return the sequence numbers of one rank in one micro-step of an optimizer step, int64 (B,).

    The sequences of all ranks and micro-steps form the global batch of a step. The global batch does not depend on the
    number of ranks.
    """
    share = global_batch_size // n_ranks
    first = step * global_batch_size + rank * share + micro_step * batch_size
    return np.arange(first, first + batch_size, dtype=np.int64)


def gather(data: Ids, starts: np.ndarray, context_length: int) -> tuple[Tensor, Tensor]:
    """Cut windows from data (n_tokens,) at `starts` (B,). Return tokens and shifted targets, int64 (B, T) each."""
    return shifted(cut_windows(data, starts, context_length))


def shifted(windows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Split windows (B, T + 1) into tokens and targets shifted by one, int64 (B, T) each."""
    return split_windows(torch.from_numpy(windows.astype(np.int64)))


def split_windows(windows: Tensor) -> tuple[Tensor, Tensor]:
    """Split windows, int64 (B, T + 1), into tokens and targets shifted by one, int64 (B, T) each.

    An id below 0 stands for the token ~id. The target of this token is NOT_COUNTED.
    """
    tokens = torch.maximum(windows, ~windows)  # (B, T + 1)
    targets = torch.where(windows < 0, NOT_COUNTED, windows)  # (B, T + 1)
    return tokens[:, :-1], targets[:, 1:]


def cut_windows(data: Ids, starts: np.ndarray, context_length: int) -> np.ndarray:
    """Cut windows with their last targets from data (n_tokens,) at `starts` (B,). Return an array (B, T + 1)."""
    return data[starts[:, None] + np.arange(context_length + 1)]


def validation_windows(
    data: Ids, *, context_length: int, batch_size: int, max_tokens: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield non-overlapping windows of data, (n_tokens,), in order. Every token except the first is a target once.

    max_tokens limits the number of targets. With None, all targets are used. Yields tokens and targets, int64 (B, T).
    The last batch of full windows may have fewer windows. If some targets do not fill a window, they form a last batch
    with one shorter window.
    """
    n_targets = len(data) - 1
    if max_tokens is not None:
        n_targets = min(n_targets, max_tokens)

    n_whole, rest = divmod(n_targets, context_length)
    for first in range(0, n_whole, batch_size):
        last = min(first + batch_size, n_whole)
        yield gather(data, context_length * np.arange(first, last), context_length)
    if rest:
        yield gather(data, np.array([n_whole * context_length]), rest)


def _mix(values: np.ndarray, key: np.ndarray | np.uint64) -> np.ndarray:
    """Hash each 64-bit integer with a key and the finaliser of SplitMix64 (Steele et al. 2014, figure 17)."""
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        mixed = values * _U64(0x9E3779B97F4A7C15)
        mixed = mixed + key * _U64(0xD1342543DE82EF95) + _U64(0x632BE59BD9B4E019)
        mixed = (mixed ^ (mixed >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> _U64(27))) * _U64(0x94D049BB133111EB)
        return mixed ^ (mixed >> _U64(31))
