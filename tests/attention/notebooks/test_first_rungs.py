"""The first rungs of the ladder give the numbers of notebook 001, to the four printed digits."""

import pytest
import torch
from torch import nn

from attention.notebooks.printed import assert_printed
from gptmini.attention.teaching import (
    CausalAttention,
    CrossAttention,
    SelfAttention,
    SelfAttentionWrapper,
)


class TestNotebook001:
    """The text is "Life is short, eat dessert first"."""

    embedded = [
        [0.3374, -0.1778, -0.3035],
        [0.1794, 1.8951, 0.4954],
        [0.2692, -0.0770, -1.0205],
        [-0.2196, -0.3792, 0.7671],
        [-0.5880, 0.3486, 0.6603],
        [-1.1925, 0.6984, -1.4097],
    ]

    @pytest.fixture
    def x(self):
        torch.manual_seed(123)
        embed = nn.Embedding(50_000, 3)
        return embed(torch.tensor([0, 4, 5, 2, 1, 3])).detach()

    def test_embedding(self, x):
        assert_printed(x, self.embedded)

    def test_omega_weights_and_context_vector_of_the_second_token(self, x):
        torch.manual_seed(123)
        module = SelfAttention(3, 3)
        assert_printed(
            module.W_query,
            [[0.2961, 0.5166, 0.2517], [0.6886, 0.0740, 0.8665], [0.1366, 0.1025, 0.1841]],
        )

        query = x[1] @ module.W_query
        keys = x @ module.W_key
        assert_printed(query, [1.4257, 0.2836, 1.7785])
        assert_printed(
            keys,
            [
                [0.1097, 0.0354, -0.0756],
                [0.4727, 0.4880, 1.1328],
                [-0.2202, -0.0513, -0.6837],
                [0.1199, -0.0528, 0.3638],
                [-0.1355, -0.0385, 0.2526],
                [-1.3798, -0.4058, -1.7648],
            ],
        )
        assert_printed(
            x @ module.W_value,
            [
                [-0.0599, -0.0902, 0.0290],
                [1.3286, 1.6514, 2.1528],
                [-0.2229, -0.5431, -0.1291],
                [-0.0983, 0.1185, -0.3472],
                [0.1634, 0.2683, 0.0239],
                [-0.4284, -1.2711, -0.7229],
            ],
        )
        assert_printed(keys @ query, [0.0320, 2.8271, -1.5446, 0.8031, 0.2452, -5.2210])
        assert_printed(
            module.attention_weights(x)[1], [0.1091, 0.5480, 0.0439, 0.1703, 0.1234, 0.0053]
        )
        assert_printed(module(x)[1], [0.7129, 0.9178, 1.1172])

    def test_separate_value_width(self, x):
        torch.manual_seed(123)
        assert_printed(
            SelfAttention(3, 3, 4)(x),
            [
                [0.1013, 0.0589, -0.2602, 0.1070],
                [0.7576, 1.3422, 0.6583, 0.6907],
                [0.0716, -0.0084, -0.3268, 0.0825],
                [0.0368, -0.0903, -0.4136, 0.0538],
                [0.2005, 0.2913, -0.0318, 0.1813],
                [0.0767, 0.0212, -0.2814, 0.0765],
            ],
        )

    def test_single_and_four_heads(self, x):
        expected = [
            [-0.0185, 0.0170, 0.1999, -0.0860],
            [0.4003, 1.7137, 1.3981, 1.0497],
            [-0.1103, -0.1609, 0.0079, -0.2416],
            [0.0668, 0.3534, 0.2322, 0.1008],
            [0.1180, 0.6949, 0.3157, 0.2807],
            [-0.1827, -0.2060, -0.2393, -0.3167],
        ]
        torch.manual_seed(123)

        assert_printed(SelfAttention(3, 2, 1)(x), [row[:1] for row in expected])

        torch.manual_seed(123)
        assert_printed(SelfAttentionWrapper(3, 2, 1, num_heads=4)(x), expected)

    def test_cross_attention(self, x):
        torch.manual_seed(123)
        module = CrossAttention(3, 2, 4)
        second = torch.rand(8, 3)

        assert_printed(
            module(x, second),
            [
                [0.4231, 0.8665, 0.6503, 1.0042],
                [0.4874, 0.9718, 0.7359, 1.1353],
                [0.4054, 0.8359, 0.6258, 0.9667],
                [0.4357, 0.8886, 0.6678, 1.0311],
                [0.4429, 0.9006, 0.6775, 1.0460],
                [0.3860, 0.8021, 0.5985, 0.9250],
            ],
        )

    def test_causal_weights(self, x):
        torch.manual_seed(123)
        drawn = SelfAttention(3, 2, 4)
        scores = [
            [0.0613, -0.3491, 0.1443, -0.0437, -0.1303, 0.1076],
            [-0.6004, 3.4707, -1.5023, 0.4991, 1.2903, -1.3374],
            [0.2432, -1.3934, 0.5869, -0.1851, -0.5191, 0.4730],
            [-0.0794, 0.4487, -0.1807, 0.0518, 0.1677, -0.1197],
            [-0.1510, 0.8626, -0.3597, 0.1112, 0.3216, -0.2787],
            [0.4344, -2.5037, 1.0740, -0.3509, -0.9315, 0.9265],
        ]

        assert_printed((x @ drawn.W_query) @ (x @ drawn.W_key).T, scores)
        assert_printed(
            drawn.attention_weights(x),
            [
                [0.1772, 0.1326, 0.1879, 0.1645, 0.1547, 0.1831],
                [0.0386, 0.6870, 0.0204, 0.0840, 0.1470, 0.0229],
                [0.1965, 0.0618, 0.2506, 0.1452, 0.1146, 0.2312],
                [0.1505, 0.2187, 0.1401, 0.1651, 0.1793, 0.1463],
                [0.1347, 0.2758, 0.1162, 0.1621, 0.1881, 0.1231],
                [0.1973, 0.0247, 0.3102, 0.1132, 0.0751, 0.2794],
            ],
        )

        module = CausalAttention(3, 2, 6, 0.0)
        module.W_query.weight = nn.Parameter(drawn.W_query.T)
        module.W_key.weight = nn.Parameter(drawn.W_key.T)

        assert_printed(
            module.attention_weights(x),
            [
                [1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
                [0.0532, 0.9468, 0.0, 0.0, 0.0, 0.0],
                [0.3862, 0.1214, 0.4924, 0.0, 0.0, 0.0],
                [0.2232, 0.3242, 0.2078, 0.2449, 0.0, 0.0],
                [0.1536, 0.3145, 0.1325, 0.1849, 0.2145, 0.0],
                [0.1973, 0.0247, 0.3102, 0.1132, 0.0751, 0.2794],
            ],
        )
