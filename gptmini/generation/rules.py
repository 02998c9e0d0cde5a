"""Sampling rules: from logits to the drawn tokens, with the names, meanings and order of Hugging Face."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from gptmini.settings import STRICT, Fraction

# top-p first tries this number of most probable tokens, because sorting 50,000 tokens takes a fifth of a step.
LIKELY = 1024
UNIFORMS_AT_ONCE = 64  # random numbers per call; one call per number would take as long as a layer of a small model
TINY = 1e-30  # a top_p of 0 means this, so that the most probable token remains


@torch.library.custom_op("gptmini::separate_cumsum", mutates_args=())
def separate_cumsum(values: Tensor) -> Tensor:
    """Return the cumulative sum over the last dimension of values (..., n). torch.compile cannot fuse this operation.

    torch 2.11 fails to compile a cumulative sum that is fused with a softmax of more than one row (pytorch issue
    180221).
    """
    return values.cumsum(dim=-1)


@separate_cumsum.register_fake
def _(values: Tensor) -> Tensor:
    return torch.empty_like(values)


def cumulative_sum(values: Tensor) -> Tensor:
    """Return the cumulative sum over the last dimension of values (..., n)."""
    # Outside compiled code, the custom operation would only add 30 microseconds per token.
    return separate_cumsum(values) if torch.compiler.is_compiling() else values.cumsum(dim=-1)


def apply_repetition_penalty(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Penalise the logits (..., V) of seen tokens (bool, ..., V): divide logits above 0, multiply logits below 0.

    Source: Keskar et al. 2019, section 4.1, extended to negative logits.
    """
    penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalised, logits)


def apply_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Set all logits (..., V) except the top_k highest to -inf. Logits equal to the lowest kept logit are also kept."""
    lowest_kept = logits.topk(min(top_k, logits.size(-1)), dim=-1).values[..., -1:]  # (..., 1)
    return logits.masked_fill(logits < lowest_kept, -torch.inf)


def apply_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most probable tokens with a total probability of at least top_p. Set all others to -inf.

    The most probable token always remains. Source: Holtzman et al. 2020, section 3.1.
    """
    if top_p == 1:
        return logits  # because of rounding errors, the sum below would drop some improbable tokens

    # Try the LIKELY most probable tokens first. Compiled code cannot branch on the result. A branch on numbers
    # of a GPU would wait for the GPU. Therefore sort the entire vocabulary in compiled code and on a GPU.
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

    # Keep a token if the more probable tokens together have not reached top_p.
    within = reached - probabilities < max(top_p, TINY)  # (..., n)
    nucleus = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, within)  # (..., V)
    return logits.masked_fill(~nucleus, -torch.inf)


def apply_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Set tokens with less than min_p times the highest probability to -inf (Nguyen et al. 2024, section 3)."""
    probabilities = logits.softmax(dim=-1)  # (..., V)
    highest = probabilities.amax(dim=-1, keepdim=True)  # (..., 1)
    return logits.masked_fill(probabilities < min_p * highest, -torch.inf)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Rules:
    """The length of a sample, and the sampling rules in the order of their application.

    Raises pydantic.ValidationError, a ValueError, if a name is unknown or a value has a wrong type or range.
    """

    # None: no limit.
    max_new_tokens: PositiveInt | None = None
    # Above 1: tokens that occur in the prompt or the sample become less probable. The limits are far from an overflow.
    repetition_penalty: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    # Divisor of the logits: below 1, it sharpens the distribution. 0: always choose the most probable token.
    temperature: NonNegativeFloat = 1.0
    # Number of most probable tokens to keep. 0 and -1 keep all tokens.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    # Keep the smallest set of most probable tokens whose total probability is at least this value.
    top_p: Fraction | None = None
    # Keep a token if its probability is at least this fraction of the highest probability.
    min_p: Fraction | None = None


# The different rules of the samples, each with the rows that use these rules, int64 (n,). None stands for all rows.
RuleGroups = Sequence[tuple[Rules, Tensor | None]]


def uniforms(seed: int, series: int) -> Iterator[float]:
    """Yield an endless series of random numbers in [0, 1). The numbers depend only on the seed and the series.

    The generator's seed is a hash of seed and series. With a linear combination of seed and series
    instead, different pairs of seed and series would give the same numbers.
    """
    digest = hashlib.blake2b(repr((seed, series)).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    while True:
        numbers = torch.rand(UNIFORMS_AT_ONCE, dtype=torch.float64, generator=generator)
        yield from numbers.tolist()


def choose(logits: Tensor, uniform: Tensor, rules: Rules, seen: Tensor | None = None) -> Tensor:
    """Choose the next token of each row: the most probable token at temperature 0, otherwise a random token.

    The repetition penalty applies at every temperature. All other rules apply only if the token is random.

    Args:
        logits: (B, V).
        uniform: float64 (B,) in [0, 1), the position of the token in the cumulative distribution.
        rules: the sampling rules.
        seen: bool (B, V), tokens that the repetition penalty applies to. Required if there is a penalty.

    Returns int64 (B,). The result is V for a row of NaN.
    """
    if rules.repetition_penalty != 1:
        assert seen is not None
        logits = apply_repetition_penalty(logits.double(), seen, rules.repetition_penalty)
    if rules.temperature == 0:
        return logits.argmax(dim=-1)  # (B,)

    # Use float64, because bfloat16 would round the numbers that the rules compare. Subtract the highest logit, so that
    # no temperature makes a logit infinite.
    logits = logits.double()
    highest = logits.amax(dim=-1, keepdim=True)  # (B, 1)
    logits = (logits - highest) / rules.temperature

    if rules.top_k is not None and rules.top_k > 0:
        logits = apply_top_k(logits, rules.top_k)
    if rules.top_p is not None:
        logits = apply_top_p(logits, rules.top_p)
    if rules.min_p is not None:
        logits = apply_min_p(logits, rules.min_p)

    cumulative = cumulative_sum(logits.softmax(dim=-1))  # (B, V)
    places = uniform.unsqueeze(-1) * cumulative[:, -1:]  # (B, 1)
    return torch.searchsorted(cumulative, places, right=True).squeeze(-1)  # (B,)


def draw(
    logits: Tensor,
    uniform: Tensor,
    groups: RuleGroups,
    n_likeliest: int | None,
    seen: Tensor | None,
) -> Tensor:
    """Draw a token for each row, and mark the tokens in seen.

    Args:
        logits, uniform, seen: see choose.
        groups: see RuleGroups.
        n_likeliest: number of most probable tokens to return. None: no log-probabilities either.

    Returns float64 (B, 2 or more), which represents every id exactly, so that one copy reads everything: the tokens,
    the highest logits, and then the log-probabilities of the tokens, the n_likeliest most probable tokens, and their
    log-probabilities. A highest logit is finite if all logits of the row are. Log-probabilities are in nats, from the
    logits before any rule.
    """
    tokens = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)  # (B,)
    for rules, rows in groups:
        penalised = seen if rules.repetition_penalty != 1 else None
        if rows is None:
            tokens = choose(logits, uniform, rules, penalised)  # (B,)
        else:
            of_rows = None if penalised is None else penalised[rows]  # (n, V)
            tokens[rows] = choose(logits[rows], uniform[rows], rules, of_rows)  # (n,)
    tokens = tokens.clamp(max=logits.size(-1) - 1).unsqueeze(1)  # (B, 1); choose returns V for NaN
    if seen is not None:
        seen.scatter_(1, tokens, True)

    columns = [tokens, logits.amax(dim=-1, keepdim=True)]  # (B, 1) each
    if n_likeliest is not None:
        of_all = logits.double().log_softmax(dim=-1)  # (B, V)
        of_likeliest, likeliest = of_all.topk(min(n_likeliest, of_all.size(-1)), dim=-1)  # (B, n)
        columns += [of_all.gather(-1, tokens), likeliest, of_likeliest]
    return torch.cat([column.double() for column in columns], dim=1)
