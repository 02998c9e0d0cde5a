"""The ladder gives the numbers that the notebooks print, to the four digits printed.

Not here, because they do not follow from what the notebooks show: 000's remarks on single numbers (such as 1.6042 as
the score of "The" with itself) belong to an earlier run of its cells and contradict the tensors printed beside them;
002's output has an unseeded input; 003 prints a size alone, of unseeded inputs; 004's last class does not parse.
"""

import pytest
import torch
from torch import nn

from gptmini.attention.teaching import (
    CausalAttention,
    CrossAttention,
    LinearSelfAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttention,
    SelfAttentionWrapper,
    SeparateWidthAttention,
)

PRINTED = 5e-5  # half of the last digit printed
FROM_PRINTED = 1e-3  # for what starts from printed digits
JOURNEY = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)
WRAPPED = [
    [-0.4519, 0.2216, 0.4772, 0.1063],
    [-0.5874, 0.0058, 0.5891, 0.3257],
    [-0.6300, -0.0632, 0.6202, 0.3860],
    [-0.5675, -0.0843, 0.5478, 0.3589],
    [-0.5526, -0.0981, 0.5321, 0.3428],
    [-0.5299, -0.1081, 0.5077, 0.3493],
]
INF = torch.inf


def assert_printed(value, expected, atol=PRINTED):
    torch.testing.assert_close(value.detach(), torch.tensor(expected), atol=atol, rtol=0)


class TestNotebook000:
    """Wrapper, then the worked example of three tokens and two heads."""

    x = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [1.0] * 6])[None]  # (1, 3, 6)
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
        """MultiHeadAttention with the three projections that the notebook's generator gives after its wrapper."""
        torch.manual_seed(123)
        wrapper = MultiHeadAttentionWrapper(3, 2, 6, dropout=0.0, num_heads=2)
        self.wrapped = wrapper(torch.stack((JOURNEY, JOURNEY)))
        query, key, value = (nn.Linear(6, 6) for _ in range(3))
        module = MultiHeadAttention(6, 6, 3, 0.0, num_heads=2, qkv_bias=True)
        module.W_query, module.W_key, module.W_value = query, key, value
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
        for projection, expected in (
            (module.W_query, self.queries),
            (module.W_key, self.keys),
            (module.W_value, self.values),
        ):
            assert_printed(projection(self.x), [expected])

    def test_reshaped_and_grouped_by_head(self, module):
        grouped = module.split_heads(torch.tensor([self.queries]))  # (1, 2, 3, 3)
        assert grouped[0, 0, 1].tolist() == pytest.approx([-4.3869, 1.2290, 4.7963])
        assert grouped[0, 1, 2].tolist() == pytest.approx([-0.63332, -0.23778, -0.13795])

    def test_scores_masked_scaled(self, module):
        grouped = [module.split_heads(p(self.x)) for p in (module.W_query, module.W_key)]
        scores = grouped[0] @ grouped[1].transpose(-2, -1)
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


class TestNotebook001:
    """Life is short, eat dessert first."""

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
        assert_printed(module.W_query, [[0.2961, 0.5166, 0.2517], [0.6886, 0.0740, 0.8665], [0.1366, 0.1025, 0.1841]])
        query, keys = x[1] @ module.W_query, x @ module.W_key
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
        assert_printed(module.attention_weights(x)[1], [0.1091, 0.5480, 0.0439, 0.1703, 0.1234, 0.0053])
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
        module, second = CrossAttention(3, 2, 4), torch.rand(8, 3)
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


def test_notebook_002_shapes():
    module = MultiHeadAttention(800, 400, 1024, 0, 2)
    assert module.W_key.weight.shape == (400, 800)
    x = torch.randn(8, 1024, 800)
    assert module.split_heads(module.W_key(x)).shape == (8, 2, 1024, 200)
    with torch.no_grad():
        assert module(x).shape == (8, 1024, 400)


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
    """Your journey starts with one step."""

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
        assert_printed(MultiHeadAttentionWrapper(3, 2, 6, 0.0, num_heads=2)(batch), [WRAPPED, WRAPPED])
