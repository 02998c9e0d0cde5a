"""One new token a row over tensors bound once: the fast path beside GPT.forward, which it equals.

A small model's step costs Python and torch's dispatcher, not arithmetic. So no module is called, the views of all
layers are cut at once, and what can be is done in place.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptmini.attention import CausalMultiHeadAttention, History, KVCache
from gptmini.attention.causal import QK_NORM_EPS
from gptmini.model.block import Block
from gptmini.model.gpt import GPT
from gptmini.model.layers import RMS_NORM_EPS, Smear


def store_by_column(model: GPT) -> GPT:
    """Keep a model's matrices in memory column by column, where a product with one row is faster; returns the model."""
    for matrix in (*(m.weight for m in model.modules() if isinstance(m, nn.Linear)), model.unembedding_weight):
        matrix.data = matrix.data.t().contiguous().t()
    return model


class DecodingStep:
    """Logits after one more token in each row of a cache that is not static."""

    def __init__(self, model: GPT, cache: KVCache, *, int8: bool = False) -> None:
        """Bind the weights of a model in eval mode, as they are now, and the cache's room.

        int8 rounds copies of the matrices to 8 bits, for torch's own dynamic quantisation, on a CPU in float32; what
        goes into them is rounded by the largest number of all rows, so that neighbours count, a little.
        """
        self.cache, self.config, self.int8 = cache, model.config, int8
        self.n_kv_heads = model.config.n_kv_heads or model.config.n_heads
        self.embedding = model.embedding.weight.detach()
        self.smear = _smear(model.smear, cache.history)
        self.positions = None
        if model.config.position == "learned":
            self.positions = model.position_embedding.weight.detach()  # (context_length, C)
        else:  # both halves of a head at once: x * cos + (second, first) * (sin, -sin)
            cos, sin = (table.to(self.embedding.dtype) for table in (model.rotary_cos, model.rotary_sin))
            self.cos, self.sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, -sin), dim=-1)  # (context_length, D)
        self.embedding_norm, self.norm = _norm(model.embedding_norm), _norm(model.norm)
        self.attentions = [self._attention(block.attention, _norm(block.attention_norm)) for block in model.blocks]
        self.mlps = [self._mlp(block, layer.history) for block, layer in zip(model.blocks, cache.layers, strict=True)]
        self.unembed, _ = self._linear(model.unembedding_weight)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits (B, V), until the next call, after int64 (B,), in inference mode; ValueError if the cache is full."""
        slots, room = self.cache.slots, self.cache.room  # (N, B, capacity, 2 G, D)
        slots.take(1)
        even = isinstance(slots.positions, slice)
        position = slots.positions.start if even else slots.positions.squeeze(1)  # of all rows, or (B,)
        x = self.smear(torch.embedding(self.embedding, tokens))  # (B, C)
        cos = sin = None
        if self.positions is not None:
            x = x + self.positions[position]
        else:
            cos, sin = self.cos[position].unsqueeze(-2), self.sin[position].unsqueeze(-2)  # ([B,] 1, D)
        x = self.embedding_norm(x)
        seen = room.narrow(2, 0, slots.visible).transpose(2, 3)  # (N, B, 2 G, S, D)
        parts = (part.unbind(0) for part in seen.split(self.n_kv_heads, dim=2))  # of each layer (B, G, S, D), twice
        new = room.select(2, position).unbind(0) if even else room.unbind(0)
        grouped = self.n_kv_heads != self.config.n_heads
        scale, mask, turned = self.config.attention_scale, slots.mask, cos is not None or self.config.qk_norm
        for attention, mlp, slot, keys, values in zip(self.attentions, self.mlps, new, *parts, strict=True):
            norm, qkv, heads, queries, keys_and_values, output = attention
            qkv(norm(x))
            if turned:
                queries, keys_and_values = self._turn(heads, cos, sin)
            if even:
                slot.copy_(keys_and_values)  # (B, 2 G, D)
            else:
                slot[slots.index] = keys_and_values.unsqueeze(1)
            context = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped
            )  # (B, H, 1, D)
            x.add_(output(context.reshape(x.shape)))
            x.add_(mlp(x))
        logits, cap = self.unembed(self.norm(x))[:, : self.config.vocab_size], self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _attention(self, module: CausalMultiHeadAttention, norm: Callable) -> tuple:
        """Norm; projection; its result (B, H + 2 G, D), queries (B, H, 1, D) of it, the others; last projection."""
        qkv, heads = self._linear(module.qkv.weight, module.qkv.bias)
        heads = heads.view(len(heads), module.n_heads + 2 * module.n_kv_heads, module.d_head)
        queries, keys_and_values = heads[:, : module.n_heads], heads[:, module.n_heads :]
        output, _ = self._linear(module.output.weight, module.output.bias)
        return norm, qkv, heads, queries.unsqueeze(2), keys_and_values, output

    def _mlp(self, block: Block, history: History | None) -> Callable[[Tensor], Tensor]:
        norm, smear, activation = _norm(block.mlp_norm), _smear(block.mlp_smear, history), block.mlp.activation
        first, last = (self._linear(module.weight, module.bias)[0] for module in (block.mlp.input, block.mlp.output))
        return lambda x: last(activation(first(smear(norm(x)))))

    def _linear(self, weight: Tensor, bias: Tensor | None = None) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """What computes x W^T + b (B, out), and the memory where it leaves that each time."""
        output = weight.detach().new_empty(self.cache.slots.batch_size, len(weight))
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        if self.int8:  # each row in steps of a 127th of its largest number
            steps, zeros = weight.abs().amax(dim=1).clamp(min=1e-12).double() / 127, torch.zeros(len(weight)).long()
            with warnings.catch_warnings():  # deprecated for torchao, which is slower than float32 here
                warnings.simplefilter("ignore", UserWarning)
                rounded = torch.quantize_per_channel(weight.contiguous(), steps, zeros, 0, torch.qint8)
            packed = torch.ops.quantized.linear_prepack(rounded, bias)
            return lambda x: output.copy_(torch.ops.quantized.linear_dynamic(x, packed, reduce_range=True)), output
        weight = weight.t()
        if bias is None:
            return lambda x: torch.mm(x, weight, out=output), output
        return lambda x: torch.addmm(bias, x, weight, out=output), output

    def _turn(self, heads: Tensor, cos: Tensor | None, sin: Tensor | None) -> tuple[Tensor, Tensor]:
        """Queries (B, H, 1, D), and keys and values (B, 2 G, D), of heads (B, H + 2 G, D) as attention needs them."""
        n_heads, n_qk_heads = self.config.n_heads, self.config.n_heads + self.n_kv_heads
        qk, values = heads[:, :n_qk_heads], heads[:, n_qk_heads:]  # (B, H + G, D), (B, G, D)
        if cos is not None:
            qk = torch.addcmul(qk * cos, qk.roll(qk.size(-1) // 2, -1), sin)
        if self.config.qk_norm:
            qk = torch.rms_norm(qk, qk.shape[-1:], None, QK_NORM_EPS)
        return qk[:, :n_heads].unsqueeze(2), torch.cat((qk[:, n_heads:], values), dim=1)


def _norm(module: nn.Module) -> Callable[[Tensor], Tensor]:
    if isinstance(module, nn.RMSNorm):
        return lambda x: torch.rms_norm(x, x.shape[-1:], None, RMS_NORM_EPS)
    if isinstance(module, nn.LayerNorm):
        shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    return lambda x: x


def _smear(module: Smear | None, history: History | None) -> Callable[[Tensor], Tensor]:
    """The module's output for one position (B, C)."""
    if module is None:
        return lambda x: x
    gains = torch.stack([torch.ones_like(module.gains[0]), *module.gains]).detach().flip(0)  # (K + 1, C), newest last
    return lambda x: (history.append(x.unsqueeze(1)) * gains).sum(dim=1)
