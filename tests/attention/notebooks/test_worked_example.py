"""The ladder gives the numbers of notebook 000, to the four printed digits.

The tests leave out the notebook's remarks on single numbers, such as 1.6042 as the score of "The" with itself. These
remarks are from an earlier run of the cells and contradict the printed tensors.
"""

import pytest
import torch
from torch import nn

from attention.notebooks.printed import FROM_PRINTED, JOURNEY, WRAPPED, assert_printed
from gptmini.attention.teaching import MultiHeadAttention, MultiHeadAttentionWrapper

INF = torch.inf


class TestNotebook000:
    """The wrapper, then the worked example with three tokens and two heads."""

    x = torch.tensor(
        [
            [
                [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
                [6.0, 5.0, 4.0, 3.0, 2.0, 1.0],
                [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            ]
        ]
    )  # (1, 3, 6)
    queries = [
        [-3.3182, 0.42931, 3.2498, -2.0282, -2.0650, 2.2758],
        [-4.3869, 1.2290, 4.7963, -2.4509, -0.43620, -1.2468],
        [-1.3072, 0.0018372, 1.2705, -0.63332, -0.23778, -0.13795],
    ]
    query_weights = [
        [-0.3453, -0.1171, -0.2875, 0.0270, -0.0762, -0.2190],
        [-0.0371, 0.3868, -0.0322, 0.0130, -0.0637, 0.0642],
        [0.3638, 0.2496, 0.1449, 0.0887, 0.0963, 0.1577],
        [-0.0528, -0.3794, -0.2525, 0.3485, 0.0244, -0.3307],
        [0.0644, 0.3373, -0.3858, -0.2748, -0.1626, 0.0164],
        [-0.0952, -0.0449, -0.3980, 0.1912, 0.3583, 0.2495],
    ]
    key_weights = [
        [-0.0243, 0.2879, 0.1894, 0.0149, 0.0803, -0.0387],
        [-0.2245, -0.1543, -0.2486, 0.3391, 0.2247, 0.1428],
        [-0.3131, 0.3150, 0.1280, 0.2824, -0.1606, 0.0865],
        [0.3986, 0.2746, 0.3274, -0.0857, 0.3110, -0.3198],
        [0.0353, -0.2299, -0.0952, -0.1046, 0.0305, 0.3716],
        [0.2021, -0.0017, 0.2898, -0.2092, 0.2104, -0.0379],
    ]
    keys = [
        [1.2777, 2.1052, 1.2342, 1.2710, 1.3911, 1.4051],
        [2.1467, -1.4555, 0.5085, 5.1667, -1.0620, 2.4676],
        [0.4384, 0.1270, 0.0256, 0.9534, 0.1451, 0.8025],
    ]
    values = [
        [1.1584, 1.9865, -1.2399, 2.4898, -4.1935, 3.7342],
        [1.3962, 3.1158, -2.7011, 0.1129, -2.2644, -0.2995],
        [0.1818, 0.7535, -0.8222, 0.5391, -0.8618, 0.7727],
    ]
    scores = [
        [[0.6750, -6.0953, -1.3173], [2.9018, -8.7669, -1.6448], [-0.0983, -2.1627, -0.5404]],
        [[-2.2529, -2.6703, -0.4068], [-5.4737, -15.2760, -3.4004], [-1.3295, -3.3600, -0.7490]],
    ]
    masked = [
        [[0.6750, -INF, -INF], [2.9018, -8.7669, -INF], [-0.0983, -2.1627, -0.5404]],
        [[-2.2529, -INF, -INF], [-5.4737, -15.2760, -INF], [-1.3295, -3.3600, -0.7490]],
    ]
    scaled = [
        [[0.3897, -INF, -INF], [1.6754, -5.0615, -INF], [-0.0567, -1.2487, -0.3120]],
        [[-1.3007, -INF, -INF], [-3.1602, -8.8196, -INF], [-0.7676, -1.9399, -0.4324]],
    ]
    weights = [
        [[1.0, 0.0, 0.0], [0.9988, 0.0012, 0.0], [0.4812, 0.1461, 0.3727]],
        [[1.0, 0.0, 0.0], [0.9965, 0.0035, 0.0], [0.3693, 0.1144, 0.5163]],
    ]
    context = [
        [[1.1584, 1.9865, -1.2399], [1.1587, 1.9879, -1.2416], [0.8291, 1.6919, -1.2977]],
        [[2.4898, -4.1935, 3.7342], [2.4816, -4.1868, 3.7202], [1.2108, -2.2525, 1.7438]],
    ]
    combined = [
        [1.1584, 1.9865, -1.2399, 2.4898, -4.1935, 3.7342],
        [1.1587, 1.9879, -1.2416, 2.4816, -4.1868, 3.7202],
        [0.8291, 1.6919, -1.2977, 1.2108, -2.2525, 1.7438],
    ]

    @pytest.fixture
    def module(self):
        """Return MultiHeadAttention with the three projections that the notebook draws after its wrapper."""
        torch.manual_seed(123)
        wrapper = MultiHeadAttentionWrapper(3, 2, 6, dropout=0.0, num_heads=2)
        self.wrapped = wrapper(torch.stack((JOURNEY, JOURNEY)))
        query, key, value = (nn.Linear(6, 6) for _ in range(3))
        module = MultiHeadAttention(6, 6, 3, 0.0, num_heads=2, qkv_bias=True)
        module.W_query = query
        module.W_key = key
        module.W_value = value
        nn.init.eye_(module.out_proj.weight)  # the example ends before the output projection
        nn.init.zeros_(module.out_proj.bias)

        return module

    def test_wrapper(self, module):
        assert_printed(self.wrapped, [WRAPPED, WRAPPED])

    def test_weights_and_biases(self, module):
        assert_printed(module.W_query.weight, self.query_weights)
        assert_printed(module.W_query.bias, [-0.2891, -0.3291, 0.1695, 0.0092, 0.1674, -0.3989])
        assert_printed(module.W_key.weight, self.key_weights)

    def test_queries_keys_values(self, module):
        assert_printed(module.W_query(self.x), [self.queries])
        assert_printed(module.W_key(self.x), [self.keys])
        assert_printed(module.W_value(self.x), [self.values])

    def test_reshaped_and_grouped_by_head(self, module):
        grouped = module.split_heads(torch.tensor([self.queries]))  # (1, 2, 3, 3)
        assert grouped[0, 0, 1].tolist() == pytest.approx([-4.3869, 1.2290, 4.7963])
        assert grouped[0, 1, 2].tolist() == pytest.approx([-0.63332, -0.23778, -0.13795])

    def test_scores_masked_scaled(self, module):
        queries = module.split_heads(module.W_query(self.x))  # (1, 2, 3, 3)
        keys = module.split_heads(module.W_key(self.x))  # (1, 2, 3, 3)
        scores = queries @ keys.transpose(-2, -1)
        assert_printed(scores, [self.scores], atol=1e-4)  # five digits, printed with four

        masked = scores.masked_fill(~module.mask, -INF)
        assert_printed(masked, [self.masked], atol=1e-4)
        assert_printed(masked / 3**0.5, [self.scaled])

    def test_weights(self, module):
        assert_printed(module.attention_weights(self.x), [self.weights])

    def test_weights_from_the_printed_scores(self, module):
        assert_printed(torch.tensor(self.scaled).softmax(-1), self.weights, atol=FROM_PRINTED)

    def test_context_regrouped_and_combined(self, module):
        values = module.split_heads(module.W_value(self.x))
        context = module.attention_weights(self.x) @ values
        assert_printed(context, [self.context])
        assert_printed(context.transpose(1, 2).reshape(1, 3, 6), [self.combined])
        assert_printed(module(self.x), [self.combined])
