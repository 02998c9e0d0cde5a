"""Sampling rules: pure functions of logits with Hugging Face's names, meanings and order."""

from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from gptmini.settings import STRICT

# Tokens among which top-p looks first: to sort a vocabulary of 50,000 would take a fifth of a token's time.
LIKELY = 1024

# A probability, or a share of one, that leaves some token.
AboveZero = Annotated[float, Field(gt=0, le=1)]
# A factor on logits, far from where float64 overflows.
Penalty = Annotated[float, Field(ge=1e-3, le=1e3)]


@torch.library.custom_op("gptmini::separate_cumsum", mutates_args=())
def separate_cumsum(values: Tensor) -> Tensor:
    """Cumulative sum over the last dimension of values (..., n), as an operation that torch.compile leaves as it is.

    torch 2.11 fails to compile a sum that it fuses with the softmax of several rows (pytorch issue 180221).
    """
    return values.cumsum(dim=-1)


@separate_cumsum.register_fake
def _(values: Tensor) -> Tensor:
    return torch.empty_like(values)


def cumulative_sum(values: Tensor) -> Tensor:
    """Cumulative sum over the last dimension of values (..., n)."""
    # Outside compiled code a custom operation would only cost 30 microseconds a token.
    return separate_cumsum(values) if torch.compiler.is_compiling() else values.cumsum(dim=-1)


def apply_repetition_penalty(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide logits (..., V) above 0 by penalty and multiply those below, where seen (bool, ..., V).

    Source: Keskar et al. 2019, section 4.1, with the sign minded.
    """
    penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalised, logits)


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
        return logits  # the sum below would round, and drop some of the least probable tokens

    # Compiled code cannot branch on what the first look finds, and a branch on a GPU's numbers waits for the GPU: both
    # sort the whole vocabulary at once.
    vocab_size = logits.size(-1)
    sort_all = logits.is_cuda or torch.compiler.is_compiling()
    n_candidates = vocab_size if sort_all else min(LIKELY, vocab_size)
    while True:
        ordered, order = logits.topk(n_candidates, dim=-1)  # (..., n) each, highest first
        probabilities = (ordered - logits.logsumexp(dim=-1, keepdim=True)).exp()  # (..., n)
        reached = cumulative_sum(probabilities)  # (..., n)
        if n_candidates == vocab_size or (reached[..., -1] >= top_p).all():
            break
        n_candidates = vocab_size

    # A token is kept if the likelier ones have not reached top_p before it.
    within = reached - probabilities < top_p  # (..., n)
    kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, within)  # (..., V)
    return logits.masked_fill(~kept, -torch.inf)


def apply_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Set tokens less than min_p times as probable as the likeliest to -inf (Nguyen et al. 2024, section 3)."""
    probabilities = logits.softmax(dim=-1)  # (..., V)
    highest = probabilities.amax(dim=-1, keepdim=True)  # (..., 1)
    return logits.masked_fill(probabilities < min_p * highest, -torch.inf)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Rules:
    """Length of a sample, and what is done to its logits, in the order of the fields.

    Raises pydantic.ValidationError, a ValueError: an unknown name, or a value of the wrong type or out of range.
    """

    # None goes on until something else ends the sample.
    max_new_tokens: PositiveInt | None = None
    # Above 1 makes tokens that prompt or sample hold less probable.
    repetition_penalty: Penalty = 1.0
    temperature: NonNegativeFloat = 1.0  # at 0 the most probable token is taken
    top_k: PositiveInt | None = None  # number of most probable tokens to keep
    # Probability that the smallest set of tokens to keep has together.
    top_p: AboveZero | None = None
    # Least probability to keep, as a share of that of the most probable token.
    min_p: AboveZero | None = None


def choose(logits: Tensor, uniform: Tensor, rules: Rules, seen: Tensor | None = None) -> Tensor:
    """Next token of each row: the most probable at temperature 0, else drawn from what the rules leave.

    logits are (B, V); uniform, float64 (B,) in [0, 1), says where in the cumulative distribution each token lies; seen,
    bool (B, V), are the tokens that the repetition penalty is for. Returns int64 (B,); a row of nan yields V.
    """
    if rules.repetition_penalty != 1:
        assert seen is not None
        logits = apply_repetition_penalty(logits.double(), seen, rules.repetition_penalty)
    if rules.temperature == 0:
        return logits.argmax(dim=-1)  # (B,)

    # In float64, because bfloat16 would round what the rules compare; relative to the highest logit, because then no
    # temperature makes a logit infinite.
    logits = logits.double()
    highest = logits.amax(dim=-1, keepdim=True)  # (B, 1)
    logits = apply_temperature(logits - highest, rules.temperature)

    if rules.top_k is not None:
        logits = apply_top_k(logits, rules.top_k)
    if rules.top_p is not None:
        logits = apply_top_p(logits, rules.top_p)
    if rules.min_p is not None:
        logits = apply_min_p(logits, rules.min_p)

    cumulative = cumulative_sum(logits.softmax(dim=-1))  # (B, V)
    places = uniform.unsqueeze(-1) * cumulative[:, -1:]  # (B, 1)
    return torch.searchsorted(cumulative, places, right=True).squeeze(-1)  # (B,)
