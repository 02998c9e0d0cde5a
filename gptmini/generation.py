"""Sampling: rules as pure functions of logits, then the decoding loop over the key/value cache."""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from gptmini.model import GPT


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide logits (..., V) by temperature, above 0: below 1 sharpens, above 1 flattens."""
    return logits / temperature


def apply_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Set all but the top_k highest logits (..., V) to -inf; ties with the last of them stay."""
    lowest_kept = logits.topk(min(top_k, logits.size(-1)), dim=-1).values[..., -1:]  # (..., 1)
    return logits.masked_fill(logits < lowest_kept, -torch.inf)


def apply_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Keep the most probable tokens up to and with the one that brings their sum to top_p; the others get -inf.

    Source: Holtzman et al. 2020, section 3.1.
    """
    if top_p == 1:
        return logits  # where rounding would drop some of the least probable
    ordered, order = logits.sort(dim=-1, descending=True)  # (..., V) each
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # probability of what stands higher
    dropped = (before >= top_p).scatter(-1, order, before >= top_p)
    return logits.masked_fill(dropped, -torch.inf)


def choose(
    logits: Tensor, uniform: Tensor, *, temperature: float, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Next token of each row: the most probable at temperature 0, else drawn after temperature, top-k, top-p.

    Args:
        logits: (B, V).
        uniform: float64 (B,), in [0, 1): where in the cumulative distribution each row's token lies.
        temperature: at least 0; 0 is greedy.
        top_k: keep so many most probable tokens; None for all.
        top_p: keep the smallest set with so much probability; None for all.

    Returns int64 (B,).
    Raises ValueError: a logit that is no number.
    """
    highest = logits.amax(dim=-1, keepdim=True)  # (B, 1)
    if not highest.isfinite().all():  # so is any nan among them
        raise ValueError("logits must be finite, got others: the model has diverged or its checkpoint is damaged")
    if temperature == 0:
        return logits.argmax(dim=-1)
    logits = apply_temperature((logits - highest).double(), temperature)  # no temperature makes the highest infinite
    if top_k is not None:
        logits = apply_top_k(logits, top_k)
    if top_p is not None:
        logits = apply_top_p(logits, top_p)
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)  # (B, V)
    drawn = torch.searchsorted(cumulative, uniform.unsqueeze(-1) * cumulative[:, -1:], right=True)  # (B, 1)
    return drawn.squeeze(-1)


def generate_stream(
    model: GPT,
    prompt: Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    first_sample: int = 0,
    end_of_text: int | None = None,
) -> Iterator[Tensor]:
    """Continue a prompt, a token at a time; each row is a sample with a random stream of its own.

    When the cache is full, the newest half of the window is encoded again in one pass and decoding goes on.

    Args:
        model: is put in eval mode until the last token is drawn or the stream is closed, and left as it was.
        prompt: int64 (B, T), T at least 1; of a longer one the newest context_length tokens are seen.
        max_new_tokens: most tokens to draw for each row.
        temperature, top_k, top_p: as for choose.
        seed: with a sample's number it fixes the sample.
        first_sample: number of the first row's sample; rows count on.
        end_of_text: stop when every row has drawn this id; None to go on.

    Yields int64 (B,) on the CPU, one token a row; rows that have ended keep yielding tokens without meaning.
    Raises ValueError, when the first token is asked for: an argument out of range, an empty prompt, or an id in it that
    the model has not.
    """
    check_sampling(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p)
    if prompt.ndim != 2 or not prompt.numel():
        raise ValueError(f"prompt must be (B, T) with at least one token, got {tuple(prompt.shape)}")
    if not 0 <= prompt.min() <= prompt.max() < model.config.vocab_size:
        raise ValueError(f"prompt must hold ids from 0 to {model.config.vocab_size - 1}, got {prompt.max().item()}")
    context_length = model.config.context_length
    generators = [sample_generator(seed, first_sample + row) for row in range(prompt.size(0))]
    cache = model.new_cache(prompt.size(0))
    window = prompt[:, -context_length:].cpu()  # what the cache holds or will hold after the next pass
    new, ended = window, torch.zeros(prompt.size(0), dtype=torch.bool)
    was_training = model.training
    model.eval()
    try:
        for _ in range(max_new_tokens):
            if cache.length + new.size(1) > context_length:
                cache.reset()
                new = window = window[:, -max(1, context_length // 2) :]
            logits = _next_logits(model, new, cache).cpu()  # (B, V)
            uniform = torch.stack([torch.rand((), dtype=torch.float64, generator=g) for g in generators])  # (B,)
            token = choose(logits, uniform, temperature=temperature, top_k=top_k, top_p=top_p)  # (B,)
            yield token
            ended |= token == end_of_text if end_of_text is not None else False
            if ended.all():
                return
            new = token.unsqueeze(1)  # (B, 1)
            window = torch.cat((window, new), dim=1)
    finally:
        model.train(was_training)


def prompt_ids(tokenizer, prompt: str) -> list[int]:
    """Ids of a prompt; of an empty one what starts a document: end-of-text, or id 0 where there is none."""
    return tokenizer.encode(prompt) or [tokenizer.end_of_text or 0]


def sample_generator(seed: int, sample: int) -> torch.Generator:
    """Random stream of one sample: the same for a seed and a number, whatever else is drawn."""
    return torch.Generator().manual_seed((seed * 1_000_003 + sample) % 2**63)  # a prime apart: neighbours differ


def check_sampling(*, max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise ValueError for a sampling argument of the wrong type or out of range."""
    numbers = (int, float)
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be a whole number of at least 1, got {max_new_tokens!r}")
    if type(temperature) not in numbers or not 0 <= temperature <= sys.float_info.max:
        raise ValueError(f"temperature must be a finite number of at least 0 (0 is greedy), got {temperature!r}")
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise ValueError(f"top_k must be a whole number of at least 1, got {top_k!r}")
    if top_p is not None and (type(top_p) not in numbers or not 0 < top_p <= 1):
        raise ValueError(f"top_p must be a number above 0 and at most 1, got {top_p!r}")


@torch.no_grad()
def _next_logits(model: GPT, tokens: Tensor, cache) -> Tensor:
    """Logits (B, V) after the newest of tokens (B, T)."""
    hidden = model.hidden(tokens.to(model.embedding.weight.device), cache)
    return model.unembed(hidden[:, -1:])[:, 0]


class TextStream:
    """Turns ids that arrive one at a time into text that never ends within a character."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer
        self._pending: list[int] = []
        self._shown = 0  # characters of the pending ids' text that were returned

    def push(self, token: int) -> str:
        """Text that is certain now that token has come; empty while a character is incomplete."""
        self._pending.append(token)
        text = self.tokenizer.decode(self._pending)
        certain = text.removesuffix("�")  # an incomplete character decodes to one of these, at the end
        piece, self._shown = certain[self._shown :], len(certain)
        if certain == text:
            self._pending, self._shown = [], 0
        return piece

    def finish(self) -> str:
        """Whatever is left, incomplete or not."""
        piece = self.tokenizer.decode(self._pending)[self._shown :]
        self._pending, self._shown = [], 0
        return piece
