"""The fast path of decoding. It adds one token to each row and returns the same result as GPT.forward.

A small model spends the time of a step in Python and torch's dispatcher, not in arithmetic. Therefore DecodingStep
collects weights and buffers only once and does not call modules. It slices the views of all layers in one operation and
works in place.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptmini.attention import CausalMultiHeadAttention
from gptmini.model.block import Block
from gptmini.model.gpt import GPT
from gptmini.model.gpt_cache import GPTCache
from gptmini.model.packed import PackedLinear
from gptmini.model.smear import Smear, SmearHistory

Function = Callable[[Tensor], Tensor]


class BoundAttention(NamedTuple):
    """The attention of one layer, as functions that have fixed weights and fixed output buffers."""

    norm: Function  # (B, C) to (B, C)
    qkv: Function  # (B, C) to (B, (H + 2 G) D); writes the result into the buffer heads
    heads: Tensor  # (B, H + 2 G, D), the result of qkv
    queries: Tensor  # (B, H, 1, D), the queries in heads
    keys_and_values: Tensor  # (B, 2 G, D), the keys and values in heads
    gains: Tensor | None  # (H + G, D), gains of the query-key norm
    output: Function  # (B, H D) to (B, C)


class DecodingStep:
    """A function that adds one token to each row of a cache and returns the next logits."""

    def __init__(self, model: GPT, cache: GPTCache) -> None:
        """Collect the current weights of a model in eval mode and the buffers of the cache."""
        self.cache = cache
        # The keys and values of all layers, (N, B, 2 G, capacity, D).
        self.buffer = cache.attention.buffer
        self.config = model.config
        self.n_kv_heads = model.config.n_kv_heads or model.config.n_heads
        self.qk_norm_eps = model.blocks[0].attention.qk_norm_eps

        self.embedding = model.embedding.weight.detach()
        self.smear = _bind_smear(model.smear, cache.smear)
        self.positions: Tensor | None = None
        if model.config.position == "learned":
            self.positions = model.position_embedding.weight.detach()  # (context_length, C)
        else:
            # Rotate both halves of a head x = (first, second) in one operation:
            # x * cos + (second, first) * (sin, -sin).
            cos = model.rotary_cos.to(self.embedding.dtype)  # (longest_input, D/2)
            sin = model.rotary_sin.to(self.embedding.dtype)  # (longest_input, D/2)
            self.cos = torch.cat((cos, cos), dim=-1)  # (longest_input, D)
            self.sin = torch.cat((sin, -sin), dim=-1)  # (longest_input, D)
        self.embedding_norm = _bind_norm(model.embedding_norm)

        self.attentions = []
        self.mlps = []
        for block, history in zip(model.blocks, cache.mlp_smears, strict=True):
            self.attentions.append(self._bind_attention(block.attention, block.attention_norm))
            self.mlps.append(self._bind_mlp(block, history))

        self.norm = _bind_norm(model.norm)
        self.unembed, _ = self._bind_linear(getattr(model, "unembedding", model.embedding))

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, V) after tokens int64 (B,). The next call overwrites them. Requires inference mode.

        Raises ValueError if the cache is full.
        """
        slots = self.cache.slots
        slots.reserve(1)
        # An int if all rows have the same length, otherwise int64 (B,).
        positions = slots.positions
        position = positions.start if isinstance(positions, slice) else positions.squeeze(1)

        x = self.smear(torch.embedding(self.embedding, tokens))  # (B, C)
        cos = sin = None
        if self.positions is not None:
            x = x + self.positions[position]
        else:
            cos = self.cos[position].unsqueeze(-2)  # ([B,] 1, D)
            sin = self.sin[position].unsqueeze(-2)  # ([B,] 1, D)
        x = self.embedding_norm(x)

        # For all layers together, slice the visible keys and values, and the slots for the new keys and values.
        visible = self.buffer.narrow(3, 0, slots.visible)  # (N, B, 2 G, S, D)
        all_keys, all_values = visible.split(self.n_kv_heads, dim=2)  # (N, B, G, S, D) each
        same_position = isinstance(position, int)
        if same_position:
            new = self.buffer.select(3, position)  # (N, B, 2 G, D)
        else:
            new = self.buffer.transpose(2, 3)  # (N, B, capacity, 2 G, D)
        layers = zip(
            self.attentions,
            self.mlps,
            all_keys.unbind(0),  # (B, G, S, D) each
            all_values.unbind(0),  # (B, G, S, D) each
            new.unbind(0),  # (B, [capacity,] 2 G, D) each
            strict=True,
        )

        must_turn = cos is not None or bool(self.config.qk_norm)
        grouped = self.n_kv_heads != self.config.n_heads
        for attention, mlp, keys, values, slot in layers:
            attention.qkv(attention.norm(x))
            queries = attention.queries
            keys_and_values = attention.keys_and_values
            if must_turn:
                queries, keys_and_values = self._turn(attention, cos, sin)

            if same_position:
                slot.copy_(keys_and_values)  # (B, 2 G, D)
            else:
                slot[slots.index] = keys_and_values.unsqueeze(1)  # (B, 1, 2 G, D)
            context = F.scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=slots.mask,
                scale=self.config.attention_scale,
                enable_gqa=grouped,
            )  # (B, H, 1, D)
            x.add_(attention.output(context.flatten(1)))  # (B, C)
            x.add_(mlp(x))

        logits = self.unembed(self.norm(x))[:, : self.config.vocab_size]  # (B, V)
        if self.config.logit_softcap is None:
            return logits
        cap = float(self.config.logit_softcap)
        return cap * torch.tanh(logits / cap)

    def _bind_attention(self, module: CausalMultiHeadAttention, norm: nn.Module) -> BoundAttention:
        qkv, result = self._bind_linear(module.qkv)
        n_heads = module.n_heads + 2 * module.n_kv_heads
        heads = result.view(len(result), n_heads, module.d_head)  # (B, H + 2 G, D)
        output, _ = self._bind_linear(module.output)
        return BoundAttention(
            norm=_bind_norm(norm),
            qkv=qkv,
            heads=heads,
            queries=heads[:, : module.n_heads].unsqueeze(2),  # (B, H, 1, D)
            keys_and_values=heads[:, module.n_heads :],  # (B, 2 G, D)
            gains=module.qk_gains().detach() if module.qk_norm == "gain" else None,
            output=output,
        )

    def _bind_mlp(self, block: Block, history: SmearHistory | None) -> Function:
        norm = _bind_norm(block.mlp_norm)
        smear = _bind_smear(block.mlp_smear, history)
        first, _ = self._bind_linear(block.mlp.input)
        activation = block.mlp.activation
        last, _ = self._bind_linear(block.mlp.output)
        if block.mlp.gate is not None:
            gate, _ = self._bind_linear(block.mlp.gate)

            def gated(x: Tensor) -> Tensor:
                x = smear(norm(x))  # (B, C)
                return last(activation(gate(x)).mul_(first(x)))  # (B, F) inside

            return gated
        return lambda x: last(activation(first(smear(norm(x)))))

    def _bind_linear(
        self, module: nn.Linear | PackedLinear | nn.Embedding
    ) -> tuple[Function, Tensor]:
        """Return a function that computes x W^T + b, (B, out), and the buffer to which it writes each result."""
        n_rows = self.cache.slots.batch_size
        if isinstance(module, PackedLinear):
            output = self.embedding.new_empty(n_rows, module.out_features)  # (B, out)
            return lambda x: output.copy_(module(x)), output

        weight = module.weight.detach()  # (out, in)
        bias = module.bias if isinstance(module, nn.Linear) else None  # (out,)
        output = weight.new_empty(n_rows, len(weight))  # (B, out)
        transposed = weight.t()  # (in, out)
        if bias is None:
            return lambda x: torch.mm(x, transposed, out=output), output

        bias = bias.detach()
        return lambda x: torch.addmm(bias, x, transposed, out=output), output

    def _turn(
        self, attention: BoundAttention, cos: Tensor | None, sin: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return queries (B, H, 1, D), and keys and values (B, 2 G, D). Queries and keys are rotated and normalised."""
        heads = attention.heads  # (B, H + 2 G, D)
        n_heads = self.config.n_heads
        n_qk_heads = n_heads + self.n_kv_heads
        qk = heads[:, :n_qk_heads]  # (B, H + G, D)
        values = heads[:, n_qk_heads:]  # (B, G, D)

        if attention.gains is not None:
            qk = torch.rms_norm(qk, qk.shape[-1:], None, self.qk_norm_eps) * attention.gains
        if cos is not None and sin is not None:
            swapped = qk.roll(qk.size(-1) // 2, -1)  # (B, H + G, D), second half first
            qk = torch.addcmul(qk * cos, swapped, sin)
        if self.config.qk_norm is True:
            qk = torch.rms_norm(qk, qk.shape[-1:], None, self.qk_norm_eps)

        queries = qk[:, :n_heads].unsqueeze(2)  # (B, H, 1, D)
        return queries, torch.cat((qk[:, n_heads:], values), dim=1)  # (B, 2 G, D)


def _bind_norm(module: nn.Module) -> Function:
    if isinstance(module, nn.RMSNorm):
        shape = module.normalized_shape
        weight = module.weight
        eps = module.eps
        return lambda x: torch.rms_norm(x, shape, weight, eps)

    if isinstance(module, nn.LayerNorm):
        shape = module.normalized_shape
        weight = module.weight
        bias = module.bias
        eps = module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)

    return lambda x: x


def _bind_smear(module: Smear | None, history: SmearHistory | None) -> Function:
    if module is None:
        return lambda x: x

    assert history is not None  # GPTCache creates a history for every smear
    newest = torch.ones_like(module.gains[0])  # (C,), gain of the newest position itself
    # (K + 1, C), newest position last
    gains = torch.stack([newest, *module.gains]).detach().flip(0)
    return lambda x: (history.append(x.unsqueeze(1)) * gains).sum(dim=1)  # (B, C)
