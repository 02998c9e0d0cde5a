"""Sampling rules: pure functions of logits with Hugging Face's names, meanings and order."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gptmini.checks import number, whole

LIKELY = 1024  # tokens among which top-p looks first: to sort a vocabulary of 50,000 takes a fifth of a token's time


def apply_repetition_penalty(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide logits (..., V) above 0 by penalty and multiply those below, where seen (bool, ..., V).

    Source: Keskar et al. 2019, section 4.1, with the sign minded.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide logits (..., V) by temperature, above 0: below 1 sharpens, above 1 flattens."""
    return logits / temperature


def apply_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Set all but the top_k highest logits (..., V) to -inf; ties with the last of them stay."""
    lowest_kept = logits.topk(min(top_k, logits.size(-1)), dim=-1).values[..., -1:]  # (..., 1)
    return logits.masked_fill(logits < lowest_kept, -torch.inf)


def apply_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Set all but the likeliest tokens that together reach top_p to -inf (Holtzman et al. 2020, section 3.1)."""
    if top_p == 1:
        return logits  # where rounding would drop some of the least probable
    likely = () if torch.compiler.is_compiling() else (min(LIKELY, logits.size(-1)),)
    for n_candidates in (*likely, logits.size(-1)):
        ordered, order = logits.topk(n_candidates, dim=-1)  # (..., n), highest first
        probabilities = (ordered - logits.logsumexp(dim=-1, keepdim=True)).exp()
        reached = probabilities.cumsum(dim=-1)
        if n_candidates == logits.size(-1) or (reached[..., -1] >= top_p).all():
            break
    kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, reached - probabilities < top_p)
    return logits.masked_fill(~kept, -torch.inf)


def apply_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Set tokens less than min_p times as probable as the likeliest to -inf (Nguyen et al. 2024, section 3)."""
    probabilities = logits.softmax(dim=-1)
    return logits.masked_fill(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Length of a sample, and what is done to its logits, in the order of the fields; UserError for a wrong value."""

    max_new_tokens: int | None = None  # None goes on until something else ends the sample
    repetition_penalty: float = 1.0  # above 1 makes what prompt and sample hold less probable
    temperature: float = 1.0  # at least 0; 0 is greedy
    top_k: int | None = None  # keep so many most probable tokens
    top_p: float | None = None  # keep the smallest set with so much probability
    min_p: float | None = None  # keep what is so many times as probable as the most probable

    def __post_init__(self) -> None:
        """Check each value."""
        number("repetition_penalty", self.repetition_penalty, least=1e-3, most=1e3)
        number("temperature", self.temperature, least=0)
        if self.max_new_tokens is not None:
            whole("max_new_tokens", self.max_new_tokens)
        if self.top_k is not None:
            whole("top_k", self.top_k)
        if self.top_p is not None:
            number("top_p", self.top_p, above=0, most=1)
        if self.min_p is not None:
            number("min_p", self.min_p, above=0, most=1)


def choose(logits: Tensor, uniform: Tensor, rules: Rules, seen: Tensor | None = None) -> Tensor:
    """Next token of each row: the most probable at temperature 0, else drawn from what the rules leave.

    logits are (B, V); uniform, float64 (B,) in [0, 1), says where in the cumulative distribution each token lies; seen,
    bool (B, V), are the tokens that the repetition penalty is for. Returns int64 (B,); a row of nan yields V.
    """
    if rules.repetition_penalty != 1:
        logits = apply_repetition_penalty(logits.double(), seen, rules.repetition_penalty)
    if rules.temperature == 0:
        return logits.argmax(dim=-1)
    logits = logits.double()  # bfloat16 would round what the rules compare
    highest = logits.amax(dim=-1, keepdim=True)  # (B, 1)
    logits = apply_temperature(logits - highest, rules.temperature)  # no temperature makes it infinite
    if rules.top_k is not None:
        logits = apply_top_k(logits, rules.top_k)
    if rules.top_p is not None:
        logits = apply_top_p(logits, rules.top_p)
    if rules.min_p is not None:
        logits = apply_min_p(logits, rules.min_p)
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)  # (B, V)
    return torch.searchsorted(cumulative, uniform.unsqueeze(-1) * cumulative[:, -1:], right=True).squeeze(-1)
