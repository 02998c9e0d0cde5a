"""Several arrays as one: the same numbers as their concatenation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptmini.data.shards import Shards


@given(lengths=st.lists(st.integers(0, 9), min_size=1), data=st.data())
def test_shards_give_what_their_concatenation_gives(lengths, data):
    whole = np.arange(sum(lengths), dtype=np.uint16)
    shards = Shards(np.split(whole, np.cumsum(lengths)[:-1]))
    assert len(shards) == len(whole)
    assert shards.dtype == whole.dtype

    start = data.draw(st.integers(0, 90))
    stop = data.draw(st.integers(0, 90))
    assert shards[start:stop].tolist() == whole[start:stop].tolist()
    assert shards[:stop].dtype == whole.dtype
    if len(whole):
        places = data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=6, max_size=6))
        places = np.array(places).reshape(2, 3)
        assert shards[places].tolist() == whole[places].tolist()


def test_a_position_behind_the_end_is_an_error():
    with pytest.raises(IndexError):
        Shards([np.arange(3)])[np.array([3])]
