"""The GPT: an embedding, N blocks and an unembedding."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from pydantic import validate_call
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gptmini.attention import CausalMultiHeadAttention, Rotary, Slots, rotary_table
from gptmini.model.block import Block
from gptmini.model.config import GPTConfig
from gptmini.model.dropout import drop, split_keys
from gptmini.model.gpt_cache import GPTCache
from gptmini.model.layers import Linear, new_norm
from gptmini.model.smear import Smear
from gptmini.settings import STRICT, Seed

GPT2_STD = 0.02  # GPT-2 (Radford et al. 2019) uses N(0, 0.02), like GPT

# Names of the weights that have one row for each token id, plus padding rows.
VOCABULARY = ("embedding.weight", "unembedding.weight")


class GPT(nn.Module):
    """A decoder-only transformer that predicts the next token at every position."""

    def __init__(self, config: GPTConfig) -> None:
        """Create the modules and initialise their weights with torch's global generator."""
        super().__init__()
        self.config = config

        self.embedding = nn.Embedding(config.padded_vocab_size, config.d_model)
        self.smear = None
        if config.smear > 0:
            self.smear = Smear(config.smear, config.d_model)
        if config.position == "learned":
            self.position_embedding = nn.Embedding(config.context_length, config.d_model)
        else:
            assert config.rotary_base is not None
            table = rotary_table(
                config.longest_input,
                config.head_width,
                config.rotary_base,
                cast("dict[str, float] | None", config.rotary_scaling),
            )
            self.register_buffer("rotary_cos", table.cos, persistent=False)  # (longest_input, D/2)
            self.register_buffer("rotary_sin", table.sin, persistent=False)  # (longest_input, D/2)

        self.embedding_norm: nn.Module = nn.Identity()
        if config.embedding_norm:
            self.embedding_norm = new_norm(config)

        # The type checker does not know the type of the elements of a ModuleList. The cast names the type.
        blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.blocks = cast("Sequence[Block]", blocks)

        self.norm = new_norm(config)
        if not config.tie_embeddings:
            self.unembedding = Linear(config.d_model, config.padded_vocab_size, bias=False)
        self._initialise()

    def forward(self, tokens: Tensor, cache: GPTCache | None = None) -> Tensor:
        """Return the logits (B, T, V) of the next token at each position of int64 (B, T).

        A cache provides the keys and values of earlier positions, and it stores the new keys and values.
        Raises ValueError if the positions exceed config.longest_input or the capacity of the cache.
        """
        return self.unembed(self.hidden(tokens, cache))

    def hidden(
        self,
        tokens: Tensor,
        cache: GPTCache | None = None,
        *,
        dropout_keys: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return the residual stream after the last norm: (B, T) to (B, T, C). See forward for arguments and errors.

        dropout_keys contains a random key for each sequence, int32 (B,), from 0 to 2^31 - 1. In training mode, the
        dropout of a sequence depends only on its key. None: draw the keys from torch's global generator.

        dtype is the dtype of all activations: each layer casts its weights to the dtype of its input. None: the dtype
        of the embedding.
        """
        n_tokens = tokens.size(1)
        if n_tokens > self.config.longest_input:
            raise ValueError(
                f"the input must have at most {self.config.longest_input} tokens, got {n_tokens}"
            )

        positions: slice | Tensor = slice(0, n_tokens)
        if cache is not None:
            cache.slots.reserve(n_tokens)
            positions = cache.slots.positions

        x = self.embedding(tokens)  # (B, T, C)
        if dtype is not None:
            x = x.to(dtype)
        if self.smear is not None:
            x = self.smear(x, None if cache is None else cache.smear)

        rotary = None
        if self.config.position == "learned":
            # (T, C), or (B, T, C) if rows have different positions
            embedded = self.position_embedding.weight[positions]
            x = x + embedded.to(x.dtype)
        else:
            # ([B,] T, D/2) each
            rotary = Rotary(self.rotary_cos[positions], self.rotary_sin[positions])
        keys = self._keys_of_sites(tokens, dropout_keys)
        x = drop(self.embedding_norm(x), keys[-1], self.config.dropout)

        for i, block in enumerate(self.blocks):
            x = block(
                x,
                rotary=rotary,
                cache=None if cache is None else cache.attention.layers[i],
                history=None if cache is None else cache.mlp_smears[i],
                dropout_keys=keys[2 * i : 2 * i + 2],
            )
        return self.norm(x)

    def _keys_of_sites(self, tokens: Tensor, keys: Tensor | None) -> Sequence[Tensor | None]:
        """Return the keys for both outputs of each block and for the embedding, int32 (B,) each. None: no dropout."""
        n_sites = 2 * self.config.n_layers + 1
        if not self.training or not self.config.dropout:
            return [None] * n_sites
        if keys is None:
            keys = torch.randint(2**31, tokens.shape[:1], dtype=torch.int32, device=tokens.device)
        return split_keys(keys, n_sites).unbind(-1)

    def unembed(
        self, hidden: Tensor, weight: Tensor | None = None, *, keep_padding: bool = False
    ) -> Tensor:
        """Return logits (B, T, V) for hidden states (B, T, C), with the softcap of the config.

        weight is the unembedding weight in the dtype of hidden. Pass weight to cast it only once for many calls.
        If keep_padding is true, return logits (B, T, V padded) that are minus infinity for padding tokens.
        """
        if weight is not None:
            padded = F.linear(hidden, weight)  # (B, T, V padded)
        elif hasattr(self, "unembedding"):
            # Call the module: only a packed module can read its packed weights.
            padded = self.unembedding(hidden)  # (B, T, V padded)
        else:
            padded = F.linear(hidden, self.embedding.weight.to(hidden.dtype))  # (B, T, V padded)

        logits = padded if keep_padding else padded[..., : self.config.vocab_size]  # (B, T, V)
        if self.config.logit_softcap is not None:
            cap = float(self.config.logit_softcap)
            logits = cap * torch.tanh(logits / cap)
        if not keep_padding:
            return logits
        ids = torch.arange(logits.size(-1), device=logits.device)  # (V padded,)
        return logits.masked_fill(ids >= self.config.vocab_size, -torch.inf)

    @property
    def unembedding_weight(self) -> Tensor:
        """The matrix (V padded, C) that maps hidden states to logits. A tied model uses the token embedding."""
        return self.embedding.weight if self.config.tie_embeddings else self.unembedding.weight

    @torch.no_grad()
    def attention_weights(
        self, tokens: Tensor, layers: Sequence[int], *, n_last: int | None = None
    ) -> Tensor:
        """Return the attention weights (L, B, H, T, T) of L blocks for int64 (B, T), computed by the plain formula.

        If n_last is not None, return only the weights between the last n_last tokens, (L, B, H, n_last, n_last).
        """
        attentions = [self.blocks[i].attention for i in layers]
        weights: dict[nn.Module, Tensor] = {}

        def keep(module: CausalMultiHeadAttention, arguments: tuple, options: dict) -> None:
            full = module.attention_weights(*arguments, rotary=options["rotary"])  # (B, H, T, T)
            weights[module] = full if n_last is None else full[..., -n_last:, -n_last:].clone()

        hooks = []
        for attention in attentions:
            hooks.append(attention.register_forward_pre_hook(keep, with_kwargs=True))
        try:
            self.hidden(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack([weights[attention] for attention in attentions])  # (L, B, H, T, T)

    def new_cache(self, batch_size: int, capacity: int | None = None) -> GPTCache:
        """Return an empty cache with the dtype and the device of the model.

        Args:
            batch_size: B, rows.
            capacity: tokens per row, at most config.longest_input. None: config.longest_input.
        """
        weight = self.embedding.weight
        longest = self.config.longest_input
        capacity = longest if capacity is None else min(capacity, longest)
        slots = Slots(batch_size, capacity, device=weight.device)
        return GPTCache(self.config, slots, dtype=weight.dtype)

    @property
    def n_parameters(self) -> int:
        """The number of parameters. Tied matrices count once. Padding rows of the vocabulary do not count."""
        return self.count_parameters(name for name, _ in self.named_parameters())

    def count_parameters(self, names: Iterable[str]) -> int:
        """Return the number of parameters in the named weights, without padding rows of the vocabulary."""
        n_padding_rows = self.config.padded_vocab_size - self.config.vocab_size
        count = 0
        for name in names:
            count += self.get_parameter(name).numel()
            if name in VOCABULARY:
                count -= n_padding_rows * self.config.d_model
        return count

    @property
    def flops_per_token(self) -> int:
        """The number of floating-point operations to train on one token of a full context.

        Each weight of a matrix takes 6 operations. Attention takes 12 N H D T operations. Embedding look-ups are free,
        but the unembedding counts.
        Source: Chowdhery et al. 2022, appendix B.
        """
        config = self.config
        blocks = 0
        for block in self.blocks:
            blocks += sum(p.numel() for p in block.parameters() if p.ndim == 2)
        unembedding = config.vocab_size * config.d_model
        d_queries = config.n_heads * config.head_width
        attention = 12 * config.n_layers * d_queries * config.context_length
        return 6 * (blocks + unembedding) + attention

    def _initialise(self) -> None:
        gpt2 = self.config.init == "gpt2"
        for module in self.modules():
            if isinstance(module, nn.Linear):
                # A std of 1 / sqrt(fan in) gives outputs the variance of the inputs. GPT-2 uses one std for all widths.
                std = GPT2_STD if gpt2 else module.in_features**-0.5
                nn.init.normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=GPT2_STD if gpt2 else 1.0)

        for block in self.blocks:
            for projection in (block.attention.output, block.mlp.output):
                if gpt2:
                    # The residual stream sums 2 N outputs. Without this factor, the sum would grow with the depth.
                    std = GPT2_STD / math.sqrt(2 * self.config.n_layers)
                    nn.init.normal_(projection.weight, std=std)
                else:
                    nn.init.zeros_(projection.weight)

        if not gpt2 and not self.config.tie_embeddings:
            nn.init.zeros_(self.unembedding.weight)


@validate_call(config=STRICT)
def new_gpt(config: GPTConfig, seed: Seed) -> GPT:
    """Return a GPT with initial weights that depend only on the seed, an integer from 0 to 2^63 - 1.

    The state of torch's global generator does not change.
    """
    with torch.random.fork_rng(devices=[]):
        # Seed only the CPU's generator: torch.manual_seed would also seed every GPU.
        torch.default_generator.manual_seed(seed)
        return GPT(config)


def meta_gpt(config: GPTConfig) -> GPT:
    """Return a GPT on the meta device. It has shapes but no data, so wrong sizes in a file do not take memory."""
    with torch.device("meta"), _SkipNormal():
        return GPT(config)


class _SkipNormal(TorchFunctionMode):
    """Skips nn.init.normal_. On the meta device, this function would import torch's compiler, which takes a second."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        options = kwargs or {}
        if function is torch.nn.init.normal_:
            return options["tensor"]
        return function(*args, **options)


@contextmanager
def in_eval_mode(model: GPT) -> Iterator[None]:
    """Put the model into eval mode, so that dropout is off. Restore the mode of the model afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
