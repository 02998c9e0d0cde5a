"""The GPT: embed, N blocks, unembed."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptmini.attention import KVCache, Rotary, rotary_table
from gptmini.checks import whole
from gptmini.model.block import Block
from gptmini.model.config import GPTConfig
from gptmini.model.layers import NORM, Smear

GPT2_STD = 0.02  # Radford et al. 2019 keep GPT's N(0, 0.02)
VOCABULARY = ("embedding.weight", "unembedding.weight")  # weights with a row for each token id, and rows of padding


class GPT(nn.Module):
    """Decoder-only transformer that scores the next token at every position."""

    def __init__(self, config: GPTConfig) -> None:
        """Create the modules and draw their first weights from torch's global generator."""
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.padded_vocab_size, config.d_model)
        self.smear = Smear(config.smear, config.d_model) if config.smear else None
        if config.position == "learned":
            self.position_embedding = nn.Embedding(config.context_length, config.d_model)
        else:
            table = rotary_table(config.context_length, config.d_head, config.rotary_base)
            self.register_buffer("rotary_cos", table.cos, persistent=False)  # (context_length, D/2)
            self.register_buffer("rotary_sin", table.sin, persistent=False)  # (context_length, D/2)
        self.embedding_norm = NORM[config.norm](config.d_model, config.bias) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = NORM[config.norm](config.d_model, config.bias)
        if not config.tie_embeddings:
            self.unembedding = nn.Linear(config.d_model, config.padded_vocab_size, bias=False)
        self._initialise()

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Logits (B, T, V) of the token after each of int64 (B, T); a cache holds earlier positions and takes these.

        Raises ValueError: the positions exceed context_length, or the cache's room.
        """
        return self.unembed(self.hidden(tokens, cache))

    def hidden(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Residual stream after the last norm: (B, T) to (B, T, C); arguments and errors as for forward."""
        n_tokens = tokens.size(1)
        if n_tokens > self.config.context_length:
            raise ValueError(f"input must fit context_length={self.config.context_length} tokens, got {n_tokens}")
        positions: slice | Tensor = slice(0, n_tokens)
        if cache is not None:
            cache.slots.take(n_tokens)
            positions = cache.slots.positions
        x = self.embedding(tokens)  # (B, T, C)
        x = x if self.smear is None else self.smear(x, cache and cache.history)
        rotary = None
        if self.config.position == "learned":
            x = x + self.position_embedding.weight[positions]  # (T, C), or (B, T, C) of ragged rows
        else:
            rotary = Rotary(self.rotary_cos[positions], self.rotary_sin[positions])  # ([B,] T, D/2) each
        x = self.dropout(self.embedding_norm(x))
        for i, block in enumerate(self.blocks):
            x = block(x, rotary=rotary, cache=None if cache is None else cache.layers[i])
        return self.norm(x)

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits (B, T, V) of hidden states (B, T, C), soft-capped where the config says so."""
        logits = F.linear(hidden, self.unembedding_weight)[..., : self.config.vocab_size]  # (B, T, V)
        cap = self.config.logit_softcap
        return logits if cap is None else float(cap) * torch.tanh(logits / float(cap))

    @property
    def unembedding_weight(self) -> nn.Parameter:
        """Matrix (V padded, C) that turns hidden states into logits: the token embedding where the two are tied."""
        return self.embedding.weight if self.config.tie_embeddings else self.unembedding.weight

    @torch.no_grad()
    def attention_weights(self, tokens: Tensor, layers: Sequence[int]) -> Tensor:
        """What each head of some blocks attends to in int64 (B, T), by the written-out formula: (L, B, H, T, T)."""
        attentions, weights = [self.blocks[i].attention for i in layers], {}

        def keep(module: nn.Module, arguments: tuple, options: dict) -> None:
            weights[module] = module.attention_weights(*arguments, rotary=options["rotary"])

        hooks = [attention.register_forward_pre_hook(keep, with_kwargs=True) for attention in attentions]
        try:
            self.hidden(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack([weights[attention] for attention in attentions])

    def new_cache(self, batch_size: int, capacity: int | None = None, *, static: bool = False) -> KVCache:
        """Empty cache in the model's dtype, on its device, for capacity tokens a row; None for context_length."""
        config, weight = self.config, self.embedding.weight
        sizes = {"n_kv_heads": config.n_kv_heads or config.n_heads, "d_head": config.d_head, "d_model": config.d_model}
        sizes |= {"smear": config.smear, "mlp_smear": config.mlp_smear, "batch_size": batch_size}
        sizes["capacity"] = config.context_length if capacity is None else min(capacity, config.context_length)
        return KVCache(config.n_layers, **sizes, static=static, device=weight.device, dtype=weight.dtype)

    @property
    def n_parameters(self) -> int:
        """Trained numbers, a tied matrix once, rows of padded vocabulary not counted."""
        matrices = 1 if self.config.tie_embeddings else 2
        padding = matrices * (self.config.padded_vocab_size - self.config.vocab_size) * self.config.d_model
        return sum(parameter.numel() for parameter in self.parameters()) - padding

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations to train on one token of a full context: 6 a matrix weight, 12 N C T attention.

        Source: Chowdhery et al. 2022, appendix B; embedding look-ups are free, the unembedding is not.
        """
        blocks = sum(p.numel() for p in self.blocks.parameters() if p.ndim == 2)
        unembedding = self.config.vocab_size * self.config.d_model
        attention = 12 * self.config.n_layers * self.config.d_model * self.config.context_length
        return 6 * (blocks + unembedding) + attention

    def _initialise(self) -> None:
        """Draw weights as config.init says; biases start at 0 and gains at 1."""
        gpt2 = self.config.init == "gpt2"
        for module in self.modules():
            if isinstance(module, nn.Linear):
                # Without GPT-2's 0.02, outputs keep the variance of their inputs: 1 / sqrt(fan in).
                nn.init.normal_(module.weight, std=GPT2_STD if gpt2 else module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=GPT2_STD if gpt2 else 1.0)
        for block in self.blocks:
            for projection in (block.attention.output, block.mlp.output):
                if gpt2:
                    nn.init.normal_(projection.weight, std=GPT2_STD / math.sqrt(2 * self.config.n_layers))
                else:
                    nn.init.zeros_(projection.weight)
        if not gpt2 and not self.config.tie_embeddings:
            nn.init.zeros_(self.unembedding.weight)


def new_gpt(config: GPTConfig, seed: int) -> GPT:
    """GPT whose first weights follow from the seed alone, 0 to 2^63 - 1; torch's global generator stays as it was."""
    check_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's alone; torch.manual_seed would reach every device
        return GPT(config)


def check_seed(seed: int) -> None:
    """Raise UserError unless seed is a whole number from 0 to 2^63 - 1."""
    whole("seed", seed, least=0, most=2**63 - 1)
