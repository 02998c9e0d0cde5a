"""The text of several notebooks, their printed results, and a comparison with printed numbers."""

import torch

PRINTED = 5e-5  # half of the last printed digit
FROM_PRINTED = 1e-3  # for numbers computed from printed numbers

# "Your journey starts with one step": a three-number embedding of each of the six words.
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

# The output of the wrapper with two causal heads.
WRAPPED = [
    [-0.4519, 0.2216, 0.4772, 0.1063],
    [-0.5874, 0.0058, 0.5891, 0.3257],
    [-0.6300, -0.0632, 0.6202, 0.3860],
    [-0.5675, -0.0843, 0.5478, 0.3589],
    [-0.5526, -0.0981, 0.5321, 0.3428],
    [-0.5299, -0.1081, 0.5077, 0.3493],
]


def assert_printed(value, expected, atol=PRINTED):
    torch.testing.assert_close(value.detach(), torch.tensor(expected), atol=atol, rtol=0)
