"""Reading a text in parts with a cache gives the same logits as reading it at once."""

import pytest
import torch

from model.tiny import GROUPED, B, draw, make, wide
from sizes import CONTEXT as T
from sizes import GPT2, PRESETS


@pytest.mark.parametrize("chunks", [(13,), (1,) * 13, (4, 1, 8), (1, 5, 7)])
@GROUPED
@PRESETS
@torch.no_grad()
def test_cached_chunks_equal_one_pass(preset, n_kv_heads, chunks):
    model = wide(preset, n_kv_heads=n_kv_heads)
    tokens = draw()
    cache = model.new_cache(B)
    parts = [model(part, cache) for part in tokens.split(chunks, dim=1)]

    assert cache.slots.lengths == T
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 2])
@GROUPED
@PRESETS
@torch.no_grad()
def test_rows_of_different_lengths_go_on_as_each_does_alone(preset, n_kv_heads, chunk):
    """Read two rows in one padded pass and an empty third row separately, then continue all three together."""
    model = wide(preset, n_kv_heads=n_kv_heads)
    tokens = draw(3)
    cache = model.new_cache(3)
    first = model.new_cache(2, 7)
    model(tokens[:2, :7], first)  # the second row: two tokens, padded with its next ones
    cache.fill([0, 1], first, 7)
    cache.fill([2], model.new_cache(1, 0), 0)
    cache.slots.set_lengths([7, 2, 0])

    for n_done in range(0, 6, chunk):
        # After four tokens, restart the first row in the middle of its text, as decoding does when the cache is full.
        if n_done == 4:
            again = model.new_cache(1, 3)
            model(tokens[:1, 8:11], again)
            cache.fill([0], again, 3)
            cache.slots.set_lengths([3, 2 + n_done, n_done])

        starts = [7 + n_done, 2 + n_done, n_done]
        chunks = [row[start : start + chunk] for row, start in zip(tokens, starts, strict=True)]
        logits = model(torch.stack(chunks), cache)

        for row, start in enumerate(starts):
            since = 8 if row == 0 and n_done >= 4 else 0
            expected = model(tokens[row : row + 1, since : start + chunk])[:, -chunk:]
            torch.testing.assert_close(logits[row : row + 1], expected, atol=1e-5, rtol=1e-5)

    assert cache.slots.lengths.tolist() == [5, 8, 6]


@torch.no_grad()
def test_rows_that_are_equally_long_again_need_no_mask():
    model = make(GPT2)
    cache = model.new_cache(3)
    cache.slots.set_lengths([4, 2, 4])
    model(draw()[:1, :1].expand(3, 1), cache)
    assert cache.slots.mask is not None

    cache.slots.set_lengths([4, 4, 4])
    model(draw()[:1, :1].expand(3, 1), cache)
    assert cache.slots.mask is None
    assert cache.slots.lengths == 5


@torch.no_grad()
def test_more_than_context_length_is_refused():
    model = make(GPT2)
    with pytest.raises(ValueError, match="at most 13 tokens, got 14"):
        model(draw(length=14))

    cache = model.new_cache(B)
    model(draw(length=9), cache)
    with pytest.raises(ValueError, match="a cache of 13 tokens cannot hold 15"):
        model(draw(length=6), cache)
