"""One transformer block."""

from torch import Tensor, nn

from gptmini.attention import CausalMultiHeadAttention, LayerCache, Rotary
from gptmini.model.config import GPTConfig
from gptmini.model.layers import MLP, NORM


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): the pre-norm block of GPT-2."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = NORM[config.norm](config.d_model, config.bias)
        self.attention = CausalMultiHeadAttention(
            config.d_model,
            config.n_heads,
            n_kv_heads=config.n_kv_heads,
            bias=config.bias,
            dropout=config.dropout,
            qk_norm=config.qk_norm,
            scale=config.attention_scale,
        )
        self.mlp_norm = NORM[config.norm](config.d_model, config.bias)
        self.mlp = MLP(config.d_model, config.d_ff or 4 * config.d_model, activation=config.mlp, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, *, rotary: Rotary | None = None, cache: LayerCache | None = None) -> Tensor:
        """Map (B, T, C) to (B, T, C); rotary and cache are the attention's."""
        x = x + self.dropout(self.attention(self.attention_norm(x), rotary=rotary, cache=cache))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))
