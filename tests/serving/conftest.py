"""A small model that the tests of the server share."""

import pytest
import torch

from serving.clients import LETTERS
from sizes import TALKATIVE
from toys import wide_gpt


@pytest.fixture(scope="session")
def model():
    sizes = TALKATIVE | {"vocab_size": LETTERS.n_vocab, "context_length": 64}
    return wide_gpt(sizes, dtype=torch.float64).eval()
