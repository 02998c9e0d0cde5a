"""One transformer block."""

from torch import Tensor, nn

from gptmini.attention import CausalMultiHeadAttention, LayerCache, Rotary
from gptmini.model.config import GPTConfig
from gptmini.model.layers import MLP, NORM, Smear


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), smeared if the config says so: the pre-norm block of GPT-2."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = NORM[config.norm](config.d_model, config.bias)
        options = {"n_kv_heads": config.n_kv_heads, "bias": config.bias, "dropout": config.dropout}
        options |= {"qk_norm": config.qk_norm, "scale": config.attention_scale}
        self.attention = CausalMultiHeadAttention(config.d_model, config.n_heads, **options)
        self.mlp_norm = NORM[config.norm](config.d_model, config.bias)
        self.mlp_smear = Smear(config.mlp_smear, config.d_model) if config.mlp_smear else None
        self.mlp = MLP(config.d_model, config.d_ff or 4 * config.d_model, activation=config.mlp, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, *, rotary: Rotary | None = None, cache: LayerCache | None = None) -> Tensor:
        """Map (B, T, C) to (B, T, C); rotary and cache are the attention's."""
        x = x + self.dropout(self.attention(self.attention_norm(x), rotary=rotary, cache=cache))
        hidden = self.mlp_norm(x)  # (B, T, C)
        hidden = hidden if self.mlp_smear is None else self.mlp_smear(hidden, cache and cache.history)
        return x + self.dropout(self.mlp(hidden))
