"""The hash behind the order of batches is SplitMix64, whose published numbers it gives."""

import numpy as np

from gptmini.data.batches import _mix

# The first outputs of SplitMix64 for the seed 1234567, as Rosetta Code lists them for its implementations.
SEED = 1234567
PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def test_it_gives_the_numbers_of_splitmix64():
    # Output n of SplitMix64 is the finaliser of seed + n * gamma; here the key takes the place of the seed.
    factor = 0xD1342543DE82EF95
    constant = 0x632BE59BD9B4E019
    key = (SEED - constant) * pow(factor, -1, 2**64) % 2**64

    mixed = _mix(np.arange(1, 6, dtype=np.uint64), np.uint64(key))
    assert mixed.tolist() == PUBLISHED
