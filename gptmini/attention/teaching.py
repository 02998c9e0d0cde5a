"""The road from one attention head to the module that trains the GPT: each class is one idea past the last.

Every rung equals its neighbour where both apply, and the last is the production module; tests copy weights to show it.
T tokens, S tokens of a second sequence, C width in and out, H heads, D = C / H. A product of (a, b) and (b, c) costs
2abc operations. With all heads, scores and context cost 4 T^2 C on every rung. Rungs 1 to 6 keep the H T^2 weights for
the gradient: 50 MB a sequence and layer in float32 at H = 12, T = 1024.

1. SelfAttention: softmax(Q K^T / sqrt(D)) V from three matrices. Projections 6 T C D. The GPT's formula.
   LinearSelfAttention: the same with nn.Linear, which draws better first weights and may add a bias.
   SelfAttentionWrapper: H such heads side by side, H times the products.
2. CausalAttention: no token sees a later one, so every position is a prediction to learn from; dropout on weights.
3. MultiHeadAttentionWrapper: H causal heads side by side, each with projections of its own: 3 H small products.
4. MultiHeadAttention: three products for all heads, split afterwards, and one that mixes the heads: 8 T C^2 in all.
5. SeparateWidthAttention: queries and keys of one width, values of another; query, key and value given apart.
6. CrossAttention: keys and values of another sequence, T S weights. With a cache the GPT does this: one new query
   against the S keys so far.
7. CausalMultiHeadAttention: one product for queries, keys and values of all heads, and a kernel that never writes the
   T^2 weights down: T C memory. Each block of the GPT holds one.

Class and argument names are those of the notebooks that the project grew from. Every rung draws its parameters in their
order, so that a notebook's seed gives a notebook's numbers.
"""

import torch
from torch import Tensor, nn

from gptmini.attention import functional
from gptmini.attention.causal import CausalMultiHeadAttention  # noqa: F401  shown here as rung 7
from gptmini.user_error import UserError


class SelfAttention(nn.Module):
    """Each token asks every token, itself included: softmax(x W_q (x W_k)^T / sqrt(d_out_kq)) x W_v."""

    def __init__(self, d_in: int, d_out_kq: int, d_out_v: int | None = None) -> None:
        """Draw three matrices from d_in to d_out_kq, d_out_kq and d_out_v (None: d_out_kq), uniform on [0, 1)."""
        super().__init__()
        if d_out_v is None:
            d_out_v = d_out_kq
        self.W_query = nn.Parameter(torch.rand(d_in, d_out_kq))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out_kq))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out_v))

    def attention_weights(self, x: Tensor) -> Tensor:
        """Share of each token in each context vector: (..., T, d_in) to (..., T, T)."""
        return functional.attention_weights(x @ self.W_query, x @ self.W_key)

    def forward(self, x: Tensor) -> Tensor:
        """Context vectors: (..., T, d_in) to (..., T, d_out_v)."""
        return self.attention_weights(x) @ (x @ self.W_value)


class LinearSelfAttention(nn.Module):
    """SelfAttention with nn.Linear for the three matrices."""

    def __init__(self, d_in: int, d_out: int, qkv_bias: bool = False) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def attention_weights(self, x: Tensor) -> Tensor:
        """(..., T, d_in) to (..., T, T)."""
        return functional.attention_weights(self.W_query(x), self.W_key(x))

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, d_in) to (..., T, d_out)."""
        return self.attention_weights(x) @ self.W_value(x)


class SelfAttentionWrapper(nn.Module):
    """num_heads SelfAttention heads, their context vectors side by side."""

    def __init__(self, d_in: int, d_out_kq: int, d_out_v: int, num_heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(SelfAttention(d_in, d_out_kq, d_out_v) for _ in range(num_heads))

    def attention_weights(self, x: Tensor) -> Tensor:
        """(..., T, d_in) to (..., H, T, T)."""
        return torch.stack([head.attention_weights(x) for head in self.heads], dim=-3)

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, d_in) to (..., T, H d_out_v)."""
        weights = self.attention_weights(x).unbind(-3)  # H times (..., T, T)
        contexts = [w @ (x @ head.W_value) for w, head in zip(weights, self.heads, strict=True)]
        return torch.cat(contexts, dim=-1)  # (..., T, H d_out_v)


class CausalAttention(LinearSelfAttention):
    """LinearSelfAttention in which a token attends to itself and to earlier tokens only."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        qkv_bias: bool = False,
    ) -> None:
        """Create the three projections, and the mask for up to context_length tokens; dropout is a probability."""
        super().__init__(d_in, d_out, qkv_bias)
        self.dropout = nn.Dropout(dropout)
        mask = functional.causal_mask(context_length, context_length)
        self.register_buffer("mask", mask, persistent=False)

    def attention_weights(self, x: Tensor) -> Tensor:
        """(..., T, d_in) to (..., T, T), zero above the diagonal; ValueError if T exceeds context_length."""
        mask = _mask_for(x, self.mask)  # (T, T)
        return functional.attention_weights(self.W_query(x), self.W_key(x), mask=mask)

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, d_in) to (..., T, d_out); in training, weights are dropped and the others scaled up."""
        return self.dropout(self.attention_weights(x)) @ self.W_value(x)


class MultiHeadAttentionWrapper(nn.Module):
    """num_heads CausalAttention heads, their context vectors side by side."""

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
        """(..., T, d_in) to (..., H, T, T)."""
        return torch.stack([head.attention_weights(x) for head in self.heads], dim=-3)

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, d_in) to (..., T, H d_out)."""
        weights = self.attention_weights(x).unbind(-3)  # H times (..., T, T)
        contexts = []
        for head, head_weights in zip(self.heads, weights, strict=True):
            contexts.append(head.dropout(head_weights) @ head.W_value(x))  # (..., T, d_out)
        return torch.cat(contexts, dim=-1)  # (..., T, H d_out)


class MultiHeadAttention(CausalAttention):
    """MultiHeadAttentionWrapper by weight splits: the queries of all heads come from one product, which is then split.

    Keys and values of all heads come from one product each, too.
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
        """Create the layers of CausalAttention, and the projection that mixes the heads, d_out wide together.

        Raises UserError: num_heads does not divide d_out.
        """
        if d_out % num_heads:
            raise UserError(
                f"d_out must be a multiple of num_heads, got d_out={d_out} and num_heads={num_heads}"
            )
        super().__init__(d_in, d_out, context_length, dropout, qkv_bias)
        self.num_heads = num_heads
        self.out_proj = nn.Linear(d_out, d_out)

    def split_heads(self, x: Tensor) -> Tensor:
        """(..., T, d_out) to (..., H, T, D)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)  # (..., H, T, D)

    def attention_weights(self, x: Tensor) -> Tensor:
        """(..., T, d_in) to (..., H, T, T); ValueError if T exceeds context_length."""
        queries = self.split_heads(self.W_query(x))  # (..., H, T, D)
        keys = self.split_heads(self.W_key(x))  # (..., H, T, D)
        return functional.attention_weights(queries, keys, mask=_mask_for(x, self.mask))

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, d_in) to (..., T, d_out)."""
        weights = self.dropout(self.attention_weights(x))  # (..., H, T, T)
        values = self.split_heads(self.W_value(x))  # (..., H, T, D)
        context = (weights @ values).transpose(-3, -2).flatten(-2)  # (..., T, d_out)
        return self.out_proj(context)


class SeparateWidthAttention(nn.Module):
    """Unmasked heads whose queries and keys have one width and whose values another, from three separate inputs."""

    def __init__(
        self,
        number_of_heads: int,
        embedding_dimension: int,
        queries_keys_hidden_dimension: int,
        values_hidden_dimension: int,
    ) -> None:
        """Create each head's three projections, then the one from all heads' values back to embedding_dimension."""
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
        """(..., T, C) and (..., S, C) to (..., H, T, S)."""
        weights = []
        for head in self.heads:
            queries = head["query"](query)  # (..., T, D_qk)
            keys = head["key"](key)  # (..., S, D_qk)
            weights.append(functional.attention_weights(queries, keys))  # (..., T, S)
        return torch.stack(weights, dim=-3)  # (..., H, T, S)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(..., T, C), (..., S, C) and (..., S, C) to (..., T, C)."""
        weights = self.attention_weights(query, key).unbind(-3)  # H times (..., T, S)
        contexts = [w @ head["value"](value) for w, head in zip(weights, self.heads, strict=True)]
        return self.out_proj(torch.cat(contexts, dim=-1))  # (..., T, C)


class CrossAttention(SelfAttention):
    """SelfAttention whose queries come from one sequence and whose keys and values come from another."""

    def attention_weights(self, x_1: Tensor, x_2: Tensor) -> Tensor:
        """(..., T, d_in) and (..., S, d_in) to (..., T, S)."""
        return functional.attention_weights(x_1 @ self.W_query, x_2 @ self.W_key)

    def forward(self, x_1: Tensor, x_2: Tensor) -> Tensor:
        """(..., T, d_in) and (..., S, d_in) to (..., T, d_out_v)."""
        return self.attention_weights(x_1, x_2) @ (x_2 @ self.W_value)


def _mask_for(x: Tensor, mask: Tensor) -> Tensor:
    """Top-left corner of a mask for the T tokens of x; ValueError if the mask has fewer than T rows."""
    n_tokens = x.size(-2)
    if n_tokens > mask.size(-1):
        raise ValueError(f"input must fit context_length={mask.size(-1)} tokens, got {n_tokens}")
    return mask[:n_tokens, :n_tokens]  # (T, T)
