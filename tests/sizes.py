"""The tiny models of all tests, as arguments of GPTConfig. This file imports nothing from gptmini.

The letters are those of gptmini's docstrings. No two axes of a model have the same size, so that swapped axes are
noticed. A test that needs another size changes only that field: GPTConfig(**GPT2 | {"n_layers": 3}).
"""

import pytest

B = 2  # sequences
T = 5  # positions of the queries
S = 7  # positions of the keys
H = 6  # query heads
G = 3  # key and value heads
D = 4  # width of a head
C = H * D  # width of the residual stream: 24
F = 40  # width of an MLP that is not 4 C wide
V = 11  # vocabulary size
N = 2  # blocks
CONTEXT = 13  # longest input of a model

SIZES = {
    "vocab_size": V,
    "context_length": CONTEXT,
    "d_model": C,
    "n_layers": N,
    "n_heads": H,
}
GPT2 = SIZES | {
    "norm": "layernorm",
    "position": "learned",
    "mlp": "gelu",
    "bias": True,
    "tie_embeddings": True,
    "init": "gpt2",
}
MODERN = SIZES | {
    "norm": "rmsnorm",
    "position": "rotary",
    "rotary_base": 100.0,
    "mlp": "relu2",
    "bias": False,
    "qk_norm": True,
    "embedding_norm": True,
    "tie_embeddings": False,
    "logit_softcap": 15.0,
    "init": "zero_projections",
}
LLAMA = SIZES | {
    "norm": "rmsnorm",
    "norm_gain": True,
    "norm_eps": 1e-5,
    "position": "rotary",
    "rotary_base": 100.0,
    "mlp": "swiglu",
    "d_head": 10,
    "d_ff": F,
    "bias": False,
    "attention_bias": "qkv",
    "qk_norm": "gain",
    "tie_embeddings": False,
    "init": "gpt2",
}
SMEARED = MODERN | {"smear": 3, "mlp_smear": 2}

# For tests that read the generated text. Neither norms nor a softcap narrow the logits: with wide random weights, the
# text contains every token of the vocabulary.
TALKATIVE = MODERN | {
    "qk_norm": False,
    "embedding_norm": False,
    "logit_softcap": None,
    "init": "gpt2",
}

# Runs a test once for each of the three models.
PRESETS = pytest.mark.parametrize(
    "preset", [GPT2, MODERN, SMEARED], ids=["gpt2", "modern", "smeared"]
)

# GPT2 and MODERN for the runs of tests/training: byte tokens, windows so short that an epoch has many, and half the
# width for speed. The modern model starts with GPT-2's initial weights, because its own would give zero gradients in
# the first step.
TRAINED_SIZES = {"vocab_size": 257, "context_length": 5, "d_model": 12, "n_heads": 3}
TRAINED = {
    "gpt2": GPT2 | TRAINED_SIZES,
    "modern": MODERN | TRAINED_SIZES | {"init": "gpt2"},
}
