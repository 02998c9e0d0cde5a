"""The order of the training windows, as a pure function of (seed, step).

Therefore a run can resume without the state of a data loader.

A pass covers every window of the training tokens once. Pass p shifts the windows by a phase and shuffles the windows.
The phase and the order depend only on (seed, p). If a pass has W windows, then sequence n of the run is window n mod W
of pass n div W.
"""

from collections.abc import Sequence

import numpy as np

from gptmini.data.prepared.store import TokenSource
from gptmini.system.errors import UserError

# Rounds of the Feistel network. Four rounds already give a pseudorandom permutation (Luby and Rackoff 1988).
ROUNDS = 6
_U64 = np.uint64
# These numbers are hashed with the seed to make the keys of blocks and of sequences. The keys of passes are made from
# small numbers. Therefore the three kinds of keys are different.
BLOCK_ORDER = np.array([2**63], dtype=_U64)
SEQUENCE = np.array([2**63 + 1], dtype=_U64)


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


def sequence_keys(sequences: np.ndarray, *, seed: int) -> np.ndarray:
    """Return a key for the dropout of each sequence, int32 (n,), from 0 to 2^31 - 1.

    A key depends only on the seed and on the sequence number in the run, int64 (n,).
    """
    keys = _mix(sequences.astype(_U64), _mix(SEQUENCE, _U64(seed % 2**64)))
    return (keys >> _U64(33)).astype(np.int32)


def starts_in_sources(
    sequences: np.ndarray, sources: Sequence[TokenSource], *, context_length: int, seed: int
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
    # The tokens suffice for this number of windows with every phase below context_length.
    windows_per_pass = (n_tokens - context_length) // context_length
    if windows_per_pass < 1:
        raise UserError(
            f"model.context_length={context_length} requires {2 * context_length} training tokens, got {n_tokens}; "
            "give more text, or lower model.context_length"
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


def _mix(values: np.ndarray, key: np.ndarray | np.uint64) -> np.ndarray:
    """Hash each 64-bit integer with a key and the finaliser of SplitMix64 (Steele et al. 2014, figure 17)."""
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        mixed = values * _U64(0x9E3779B97F4A7C15)
        mixed = mixed + key * _U64(0xD1342543DE82EF95) + _U64(0x632BE59BD9B4E019)
        mixed = (mixed ^ (mixed >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> _U64(27))) * _U64(0x94D049BB133111EB)
        return mixed ^ (mixed >> _U64(31))
