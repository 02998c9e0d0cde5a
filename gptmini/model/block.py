"""One transformer block."""

from collections.abc import Sequence

from torch import Tensor, nn

from gptmini.attention import CausalMultiHeadAttention, LayerCache, Rotary
from gptmini.model.config import NORM_EPS, GPTConfig
from gptmini.model.dropout import drop
from gptmini.model.layers import MLP, new_norm
from gptmini.model.smear import Smear, SmearHistory


class Block(nn.Module):
    """The pre-norm block of GPT-2: x + attention(norm(x)), then x + mlp(norm(x)).

    If config.mlp_smear is above 0, a Smear follows the norm in front of the MLP.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = new_norm(config)
        self.attention = CausalMultiHeadAttention(
            config.d_model,
            config.n_heads,
            n_kv_heads=config.n_kv_heads,
            d_head=config.d_head,
            bias=config.bias if config.attention_bias is None else config.attention_bias,
            qk_norm=config.qk_norm,
            qk_norm_eps=config.norm_eps or NORM_EPS["rmsnorm"],
            scale=config.attention_scale,
        )

        self.mlp_norm = new_norm(config)
        self.mlp_smear = None
        if config.mlp_smear > 0:
            self.mlp_smear = Smear(config.mlp_smear, config.d_model)
        self.mlp = MLP(
            config.d_model,
            config.d_ff or 4 * config.d_model,
            activation=config.mlp,
            bias=config.bias,
        )

        self.dropout = config.dropout

    def forward(
        self,
        x: Tensor,
        *,
        rotary: Rotary | None = None,
        cache: LayerCache | None = None,
        history: SmearHistory | None = None,
        dropout_keys: Sequence[Tensor | None] = (None, None),
    ) -> Tensor:
        """Map (B, T, C) to (B, T, C). rotary and cache are for the attention, and history is for the smear.

        dropout_keys are for the outputs of the attention and of the MLP, int32 (B,) each; see drop.
        """
        context = self.attention(self.attention_norm(x), rotary=rotary, cache=cache)  # (B, T, C)
        x = x + drop(context, dropout_keys[0], self.dropout)

        hidden = self.mlp_norm(x)  # (B, T, C)
        if self.mlp_smear is not None:
            hidden = self.mlp_smear(hidden, history)
        return x + drop(self.mlp(hidden), dropout_keys[1], self.dropout)
