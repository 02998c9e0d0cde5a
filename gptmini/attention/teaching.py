"""A ladder from a single attention head to the module that the GPT trains with. Each of seven rungs adds one idea.

Symbols: T tokens, S tokens of a second sequence, C width of input and output, H heads, D = C / H width of a head.

Cost: a product of (a, b) and (b, c) takes 2abc operations. Scores and context of all heads take 4 T^2 C operations in
every rung. Rungs 1 to 6 store the H T^2 weights for the backward pass: 50 MB per sequence and layer in float32 at
H = 12, T = 1024.

1. SelfAttention: one head computes softmax(Q K^T / sqrt(D)) V from three weight matrices. The projections cost 6 T C D.
   LinearSelfAttention: the same computation with nn.Linear, which has a better initialization and an optional bias.
   SelfAttentionWrapper: H of these heads side by side. They cost H times as much.
2. CausalAttention: a mask hides later tokens, so every position is a prediction to learn from. Dropout is added.
3. MultiHeadAttentionWrapper: H causal heads side by side. Each head has its own projections: 3 H small products.
4. MultiHeadAttention: three large products compute queries, keys and values of all heads; then they are split into
   heads. An output projection mixes the heads. The four products cost 8 T C^2.
5. SeparateWidthAttention: values may be wider or narrower than queries and keys. Query, key and value are separate
   inputs.
6. CrossAttention: keys and values come from a second sequence. This gives T S weights. Decoding with a cache works the
   same way: one new query attends to all S keys so far.
7. CausalMultiHeadAttention: a single product computes queries, keys and values of all heads. A fused kernel never
   stores the T^2 weights, so memory falls to T C. Each block of the GPT has this module.

Tests copy the weights from rung to rung and compare the results. Class and argument names come from the notebooks that
this project started from. Each class creates its parameters in the order of the notebooks, so the same seed gives the
same numbers.
"""

import torch
from torch import Tensor, nn

from gptmini.attention import functional
from gptmini.attention.causal import CausalMultiHeadAttention  # noqa: F401  rung 7
from gptmini.system.errors import UserError


class SelfAttention(nn.Module):
    """One head, in which each token attends to every token: softmax(x W_q (x W_k)^T / sqrt(d_out_kq)) x W_v."""

    def __init__(self, d_in: int, d_out_kq: int, d_out_v: int | None = None) -> None:
        """Create the three weight matrices with random values, uniform on [0, 1). d_out_v=None means d_out_kq."""
        super().__init__()
        if d_out_v is None:
            d_out_v = d_out_kq
        self.W_query = nn.Parameter(torch.rand(d_in, d_out_kq))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out_kq))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out_v))

    def attention_weights(self, x: Tensor) -> Tensor:
        """Return the weight of each token in each context vector: (..., T, d_in) to (..., T, T)."""
        return functional.attention_weights(x @ self.W_query, x @ self.W_key)

    def forward(self, x: Tensor) -> Tensor:
        """Return the context vectors: (..., T, d_in) to (..., T, d_out_v)."""
        return self.attention_weights(x) @ (x @ self.W_value)


class LinearSelfAttention(nn.Module):
    """SelfAttention with nn.Linear instead of plain matrices."""

    def __init__(self, d_in: int, d_out: int, qkv_bias: bool = False) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def attention_weights(self, x: Tensor) -> Tensor:
        """Map (..., T, d_in) to (..., T, T)."""
        return functional.attention_weights(self.W_query(x), self.W_key(x))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., T, d_in) to (..., T, d_out)."""
        return self.attention_weights(x) @ self.W_value(x)


class SelfAttentionWrapper(nn.Module):
    """num_heads separate SelfAttention heads. The context vectors of the heads are concatenated."""

    def __init__(self, d_in: int, d_out_kq: int, d_out_v: int, num_heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(SelfAttention(d_in, d_out_kq, d_out_v) for _ in range(num_heads))

    def attention_weights(self, x: Tensor) -> Tensor:
        """Map (..., T, d_in) to (..., H, T, T)."""
        return torch.stack([head.attention_weights(x) for head in self.heads], dim=-3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., T, d_in) to (..., T, H d_out_v)."""
        weights = self.attention_weights(x).unbind(-3)  # H times (..., T, T)
        contexts = [w @ (x @ head.W_value) for w, head in zip(weights, self.heads, strict=True)]
        return torch.cat(contexts, dim=-1)  # (..., T, H d_out_v)


class CausalAttention(LinearSelfAttention):
    """LinearSelfAttention in which a token attends only to itself and to earlier tokens."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        qkv_bias: bool = False,
    ) -> None:
        """Create the three projections and the mask for up to context_length tokens. dropout is a probability."""
        super().__init__(d_in, d_out, qkv_bias)
        self.dropout = nn.Dropout(dropout)
        mask = functional.causal_mask(context_length, context_length)
        self.register_buffer("mask", mask, persistent=False)

    def attention_weights(self, x: Tensor) -> Tensor:
        """Map (..., T, d_in) to (..., T, T), zero above the diagonal. Raises ValueError if T exceeds context_length."""
        mask = _mask_for(x, self.mask)  # (T, T)
        return functional.attention_weights(self.W_query(x), self.W_key(x), mask=mask)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., T, d_in) to (..., T, d_out).

        In training, dropout sets some weights to zero and scales up the other weights.
        """
        return self.dropout(self.attention_weights(x)) @ self.W_value(x)


class MultiHeadAttentionWrapper(nn.Module):
    """num_heads separate CausalAttention heads. The context vectors of the heads are concatenated."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        self.heads = nn.ModuleList()
        for _ in range(num_heads):
            self.heads.append(CausalAttention(d_in, d_out, context_length, dropout, qkv_bias))

    def attention_weights(self, x: Tensor) -> Tensor:
        """Map (..., T, d_in) to (..., H, T, T)."""
        return torch.stack([head.attention_weights(x) for head in self.heads], dim=-3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., T, d_in) to (..., T, H d_out)."""
        weights = self.attention_weights(x).unbind(-3)  # H times (..., T, T)
        contexts = []
        for head, head_weights in zip(self.heads, weights, strict=True):
            contexts.append(head.dropout(head_weights) @ head.W_value(x))  # (..., T, d_out)
        return torch.cat(contexts, dim=-1)  # (..., T, H d_out)


class MultiHeadAttention(CausalAttention):
    """Multi-head attention with three large projections instead of three small projections per head.

    Three products compute the queries, the keys and the values of all heads. The results are split into heads, and an
    output projection mixes the context vectors of the heads.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
    ) -> None:
        """Create the layers of CausalAttention and the output projection. All heads together are d_out wide.

        Raises UserError if num_heads does not divide d_out.
        """
        if d_out % num_heads:
            raise UserError(
                f"d_out must be a multiple of num_heads, got d_out={d_out} and num_heads={num_heads}"
            )
        super().__init__(d_in, d_out, context_length, dropout, qkv_bias)
        self.num_heads = num_heads
        self.out_proj = nn.Linear(d_out, d_out)

    def split_heads(self, x: Tensor) -> Tensor:
        """Map (..., T, d_out) to (..., H, T, D)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)  # (..., H, T, D)

    def attention_weights(self, x: Tensor) -> Tensor:
        """Map (..., T, d_in) to (..., H, T, T). Raises ValueError if T exceeds context_length."""
        queries = self.split_heads(self.W_query(x))  # (..., H, T, D)
        keys = self.split_heads(self.W_key(x))  # (..., H, T, D)
        return functional.attention_weights(queries, keys, mask=_mask_for(x, self.mask))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., T, d_in) to (..., T, d_out)."""
        weights = self.dropout(self.attention_weights(x))  # (..., H, T, T)
        values = self.split_heads(self.W_value(x))  # (..., H, T, D)
        context = (weights @ values).transpose(-3, -2).flatten(-2)  # (..., T, d_out)
        return self.out_proj(context)


class SeparateWidthAttention(nn.Module):
    """Heads without a mask, with separate inputs for query, key and value.

    Values may be wider or narrower than queries and keys.
    """

    def __init__(
        self,
        number_of_heads: int,
        embedding_dimension: int,
        queries_keys_hidden_dimension: int,
        values_hidden_dimension: int,
    ) -> None:
        """Create three projections per head, then the projection of all heads back to embedding_dimension."""
        super().__init__()
        self.heads = nn.ModuleList()
        for _ in range(number_of_heads):
            head = nn.ModuleDict(
                {
                    "query": nn.Linear(embedding_dimension, queries_keys_hidden_dimension),
                    "key": nn.Linear(embedding_dimension, queries_keys_hidden_dimension),
                    "value": nn.Linear(embedding_dimension, values_hidden_dimension),
                }
            )
            self.heads.append(head)
        self.out_proj = nn.Linear(number_of_heads * values_hidden_dimension, embedding_dimension)

    def attention_weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Map (..., T, C) and (..., S, C) to (..., H, T, S)."""
        weights = []
        for head in self.heads:
            queries = head["query"](query)  # (..., T, D_qk)
            keys = head["key"](key)  # (..., S, D_qk)
            weights.append(functional.attention_weights(queries, keys))  # (..., T, S)
        return torch.stack(weights, dim=-3)  # (..., H, T, S)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Map (..., T, C), (..., S, C) and (..., S, C) to (..., T, C)."""
        weights = self.attention_weights(query, key).unbind(-3)  # H times (..., T, S)
        contexts = [w @ head["value"](value) for w, head in zip(weights, self.heads, strict=True)]
        return self.out_proj(torch.cat(contexts, dim=-1))  # (..., T, C)


class CrossAttention(SelfAttention):
    """SelfAttention with queries from one sequence, and with keys and values from a second sequence."""

    def attention_weights(self, x_1: Tensor, x_2: Tensor) -> Tensor:
        """Map (..., T, d_in) and (..., S, d_in) to (..., T, S)."""
        return functional.attention_weights(x_1 @ self.W_query, x_2 @ self.W_key)

    def forward(self, x_1: Tensor, x_2: Tensor) -> Tensor:
        """Map (..., T, d_in) and (..., S, d_in) to (..., T, d_out_v)."""
        return self.attention_weights(x_1, x_2) @ (x_2 @ self.W_value)


def _mask_for(x: Tensor, mask: Tensor) -> Tensor:
    """Return the top-left (T, T) corner of the mask. Raise ValueError if the mask has fewer than T rows."""
    n_tokens = x.size(-2)
    if n_tokens > mask.size(-1):
        raise ValueError(
            f"input must have at most context_length={mask.size(-1)} tokens, got {n_tokens}"
        )
    return mask[:n_tokens, :n_tokens]  # (T, T)
