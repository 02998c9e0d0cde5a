"""The causal multi-head attention that the GPT trains and samples with."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptmini.attention import functional
from gptmini.attention.cache import LayerCache
from gptmini.attention.linear import Linear
from gptmini.attention.rotary import Rotary, rotate
from gptmini.system.errors import UserError


class CausalMultiHeadAttention(nn.Module):
    """Multi-head attention in which each position attends to itself and to earlier positions.

    context = concat_h(softmax(scale * Q_h K_h^T + causal mask) V_h) W_out, with one fused projection for Q, K and V.
    Source: Vaswani et al. 2017, section 3.2.2; grouped heads: Ainslie et al. 2023; query-key norm: Henry et al. 2020.
    Without gains, the norm follows the rotation. With learned gains (qk_norm="gain"), it precedes the rotation, as in
    Qwen 3.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        bias: bool | Literal["qkv"] = False,
        qk_norm: bool | Literal["gain"] = False,
        qk_norm_eps: float = 1e-6,  # as in nanochat
        scale: float | None = None,
    ) -> None:
        """Create the two projections.

        Args:
            d_model: C, width of input and output.
            n_heads: H, query heads.
            n_kv_heads: G, key and value heads. Each of them serves H / G query heads. None: G is H.
            d_head: D, width of each head. None: D is C / H.
            bias: True if both projections have a bias; "qkv" if only the fused query/key/value projection has a bias.
            qk_norm: True to RMS-normalise each query and key; "gain" to also multiply queries and keys by D learned
                gains. All heads share the gains.
            qk_norm_eps: number that the norm adds to the mean square.
            scale: factor on the scores. None: 1 / sqrt(D).

        Raises UserError if d_head is None and H does not divide C, or if G does not divide H.
        """
        super().__init__()
        if n_kv_heads is None:
            n_kv_heads = n_heads
        d_heads = d_model if d_head is None else n_heads * d_head  # width of all query heads
        if d_heads % n_heads or n_heads % n_kv_heads:
            raise UserError(
                "n_heads must divide d_model, and n_kv_heads must divide n_heads, "
                f"got d_model={d_model}, n_heads={n_heads} and n_kv_heads={n_kv_heads}"
            )

        self.d_model = d_model
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.d_head = d_heads // n_heads
        self.qk_norm = qk_norm
        self.qk_norm_eps = qk_norm_eps
        self.scale = scale

        self.qkv = Linear(d_model, (n_heads + 2 * n_kv_heads) * self.d_head, bias=bool(bias))
        self.output = Linear(d_heads, d_model, bias=bias is True)
        if qk_norm == "gain":
            self.query_gain = nn.Parameter(torch.ones(self.d_head))
            self.key_gain = nn.Parameter(torch.ones(self.d_head))

    def forward(
        self, x: Tensor, *, rotary: Rotary | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        """Attend from T new positions to themselves and to all earlier positions.

        Args:
            x: the new positions, (B, T, C).
            rotary: cosines and sines of these positions; None: queries and keys are not rotated.
            cache: keys and values of earlier positions. Keys and values of x are stored in the reserved slots.

        Returns (B, T, C). Raises ValueError if x is not C wide.
        """
        queries, keys, values = self._project(x, rotary)  # (B, T, H or G, D)
        mask = None
        if cache is not None:
            keys, values = cache.append(keys, values)  # (B, S, G, D) each
            mask = cache.slots.mask

        # is_causal aligns its mask to the top-left corner. This is correct only if T == S. If T < S, the cache provides
        # a mask, or there is a single query that may see every key.
        is_causal = mask is None and x.size(1) > 1
        context = F.scaled_dot_product_attention(
            queries.transpose(1, 2),  # (B, H, T, D)
            keys.transpose(1, 2),  # (B, G, S, D)
            values.transpose(1, 2),  # (B, G, S, D)
            attn_mask=mask,
            is_causal=is_causal,
            scale=self.scale,
            enable_gqa=self.n_kv_heads != self.n_heads,
        )  # (B, H, T, D)
        return self.output(context.transpose(1, 2).flatten(-2))  # (B, T, C)

    def attention_weights(self, x: Tensor, *, rotary: Rotary | None = None) -> Tensor:
        """Return the weights (B, H, T, T) of forward(x, rotary=rotary).

        The fused kernel of forward does not return its weights, so this method uses the plain formula.
        """
        queries, keys, _ = self._project(x, rotary)  # (B, T, H or G, D)
        n_tokens = x.size(1)
        return functional.attention_weights(
            queries.transpose(1, 2),  # (B, H, T, D)
            keys.transpose(1, 2),  # (B, G, T, D)
            mask=functional.causal_mask(n_tokens, n_tokens, device=x.device),
            scale=self.scale,
        )

    def _project(self, x: Tensor, rotary: Rotary | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, T, H, D), keys and values (B, T, G, D). Queries and keys are rotated and normalised."""
        if x.ndim != 3 or x.size(-1) != self.d_model:
            raise ValueError(f"x must be (B, T, C={self.d_model}), got {tuple(x.shape)}")

        n_qk_heads = self.n_heads + self.n_kv_heads
        n_all_heads = n_qk_heads + self.n_kv_heads
        heads = self.qkv(x).unflatten(-1, (n_all_heads, self.d_head))  # (B, T, H + 2 G, D)
        if rotary is None and not self.qk_norm:
            sizes = (self.n_heads, self.n_kv_heads, self.n_kv_heads)
            return heads.split(sizes, dim=2)  # (B, T, H or G, D)

        # Rotate and normalise queries and keys together: one operation instead of two. Without gains, the order of
        # rotation and norm makes no difference, because a rotation keeps the length of a vector.
        qk, values = heads.split((n_qk_heads, self.n_kv_heads), dim=2)  # (B, T, H + G or G, D)
        if self.qk_norm == "gain":
            qk = F.rms_norm(qk, (self.d_head,), eps=self.qk_norm_eps) * self.qk_gains().to(qk.dtype)
        if rotary is not None:
            qk = rotate(qk, rotary)
        if self.qk_norm is True:
            qk = F.rms_norm(qk, (self.d_head,), eps=self.qk_norm_eps)
        queries, keys = qk.split((self.n_heads, self.n_kv_heads), dim=2)
        return queries, keys, values  # (B, T, H or G, D)

    def qk_gains(self) -> Tensor:
        """Return the gains of all query and key heads, (H + G, D). Requires qk_norm="gain"."""
        queries = self.query_gain.expand(self.n_heads, -1)  # (H, D)
        keys = self.key_gain.expand(self.n_kv_heads, -1)  # (G, D)
        return torch.cat((queries, keys))  # (H + G, D)
