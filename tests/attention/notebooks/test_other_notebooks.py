"""The ladder gives the numbers of notebooks 002, 003 and 004, to the four printed digits.

Three outputs cannot be reproduced and are left out: 002's output has an unseeded input, 003 prints only a size of
unseeded inputs, and 004's last class does not parse.
"""

import torch

from attention.notebooks.printed import JOURNEY, WRAPPED, assert_printed
from gptmini.attention.teaching import (
    CausalAttention,
    LinearSelfAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttention,
    SeparateWidthAttention,
)


def test_notebook_002_shapes():
    module = MultiHeadAttention(800, 400, 1024, 0, 2)
    assert module.W_key.weight.shape == (400, 800)

    x = torch.randn(1, 7, 800)  # fewer than the notebook's 8 sequences of 1024 tokens, for speed
    assert module.split_heads(module.W_key(x)).shape == (1, 2, 7, 200)
    assert module(x).shape == (1, 7, 400)


def test_notebook_003_size():
    module = SeparateWidthAttention(
        number_of_heads=8,
        embedding_dimension=512,
        queries_keys_hidden_dimension=1024,
        values_hidden_dimension=512,
    )
    query, key, value = torch.rand(3, 3, 24, 512)

    assert module(query, key, value).size() == (3, 24, 512)


class TestNotebook004:
    """The text is "Your journey starts with one step"."""

    def test_parameters(self):
        torch.manual_seed(123)
        assert_printed(
            SelfAttention(3, 2)(JOURNEY),
            [
                [0.2996, 0.8053],
                [0.3061, 0.8210],
                [0.3058, 0.8203],
                [0.2948, 0.7939],
                [0.2927, 0.7891],
                [0.2990, 0.8040],
            ],
        )

    def test_linear(self):
        torch.manual_seed(789)
        assert_printed(
            LinearSelfAttention(3, 2)(JOURNEY),
            [
                [-0.0739, 0.0713],
                [-0.0748, 0.0703],
                [-0.0749, 0.0702],
                [-0.0760, 0.0685],
                [-0.0763, 0.0679],
                [-0.0754, 0.0693],
            ],
        )

    def test_causal_shape_and_wrapper(self):
        batch = torch.stack((JOURNEY, JOURNEY))
        torch.manual_seed(123)
        assert CausalAttention(3, 2, 6, 0.0)(batch).shape == (2, 6, 2)

        torch.manual_seed(123)
        assert_printed(
            MultiHeadAttentionWrapper(3, 2, 6, 0.0, num_heads=2)(batch), [WRAPPED, WRAPPED]
        )
