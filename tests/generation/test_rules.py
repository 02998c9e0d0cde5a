"""The sampling rules equal Hugging Face's warpers, and choose draws each remaining token with its probability."""

import math

import pytest
import torch

from gptmini.generation import Rules
from gptmini.generation.rules import (
    apply_min_p,
    apply_repetition_penalty,
    apply_top_k,
    apply_top_p,
)
from gptmini.generation.rules import choose as choose_by

B = 5
V = 11
INF = float("inf")
LAST = math.nextafter(1, 0)  # the largest uniform number below 1


def choose(scores, uniform, seen=None, **rules):
    return choose_by(scores, uniform, Rules(**rules), seen)


def logits(dtype=torch.float32, batch_size=B):
    torch.manual_seed(0)
    return 3 * torch.randn(batch_size, V, dtype=dtype)


def evenly(n):
    """Return the midpoints of n equal parts of [0, 1), so that counts of draws equal n times the probabilities."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


@pytest.fixture
def transformers(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers", reason="the rules are measured against transformers")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rule", "warper", "setting"),
    [(apply_top_k, "TopKLogitsWarper", k) for k in (1, 4, 11, 50)]
    + [(apply_top_p, "TopPLogitsWarper", p) for p in (0.0, 1e-9, 0.3, 0.5, 0.9, 0.999)]
    + [(apply_min_p, "MinPLogitsWarper", p) for p in (0.0, 1e-9, 0.02, 0.3, 0.99, 1.0)],
)
def test_rules_equal_hugging_face(transformers, rule, warper, setting, dtype):
    scores = logits(dtype)
    expected = getattr(transformers, warper)(setting)(None, scores.clone())
    assert torch.equal(rule(scores, setting), expected)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 7.0])
def test_the_repetition_penalty_equals_hugging_face(transformers, penalty):
    scores = logits()
    ids = torch.randint(V, (B, 7), generator=torch.Generator().manual_seed(4))
    seen = torch.zeros(B, V, dtype=torch.bool).scatter(1, ids, True)
    expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(ids, scores.clone())

    assert (scores[seen] > 0).any()
    assert (scores[seen] < 0).any()
    assert not seen.all()
    assert torch.equal(apply_repetition_penalty(scores, seen, penalty), expected)


@pytest.mark.slow
def test_rules_follow_each_other_as_in_hugging_face(transformers):
    """The processors that generate() builds for these settings, in its order, keep the same tokens."""
    settings = {
        "repetition_penalty": 1.7,
        "temperature": 0.7,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.05,
    }
    config = transformers.GPT2Config(vocab_size=V, n_positions=8, n_embd=4, n_layer=1, n_head=1)
    model = transformers.GPT2LMHeadModel(config)
    generation = transformers.GenerationConfig(
        do_sample=True, eos_token_id=0, pad_token_id=0, **settings
    )
    processors = model._get_logits_processor(generation_config=generation, input_ids_seq_length=7)

    ids = torch.randint(V, (200, 7), generator=torch.Generator().manual_seed(4))
    scores = logits(torch.float64, batch_size=200)
    probabilities = processors(ids, scores.clone()).softmax(-1)
    seen = torch.zeros(200, V, dtype=torch.bool).scatter(1, ids, True)

    n = 500
    for row in range(200):
        drawn = choose(scores[row].expand(n, V), evenly(n), seen[row].expand(n, V), **settings)
        counts = torch.bincount(drawn, minlength=V)
        assert ((counts - n * probabilities[row]).abs() <= 1.001).all()


@pytest.mark.parametrize("temperature", [0, 5e-324])
def test_temperature_zero_takes_the_most_probable_token_whatever_is_drawn(temperature):
    scores = torch.tensor([[0.1, 0.3, 0.2], [7.0, -1.0, 6.9]])
    for uniform in (0.0, 0.5, LAST):
        uniforms = torch.full((2,), uniform, dtype=torch.float64)
        drawn = choose(scores, uniforms, temperature=temperature, top_k=2, top_p=0.9)
        assert drawn.tolist() == [1, 0]

    # The penalty halves 4 to 2, below 3.
    seen = torch.tensor([[True, False, True]])
    scores = torch.tensor([[4.0, 3.0, -1.0]])
    drawn = choose(scores, uniforms[:1], seen, repetition_penalty=2.0, temperature=temperature)
    assert drawn.tolist() == [1]


@pytest.mark.parametrize("uniform", [0.0, LAST])
@pytest.mark.parametrize("rules", [{}, {"top_k": 3}, {"top_p": 0.7}, {"top_k": 6, "top_p": 0.9}])
def test_the_extremes_never_draw_a_token_of_no_probability(uniform, rules):
    scores = logits(batch_size=2000)
    scores[:, [0, 4, V - 1]] = -INF
    scores[::2, 1] = scores[::2, V - 2] = -2000.0  # underflows
    allowed = scores.double().softmax(-1) > 0
    if "top_k" in rules:
        allowed &= scores >= scores.topk(rules["top_k"]).values[:, -1:]

    uniforms = torch.full((2000,), uniform, dtype=torch.float64)
    drawn = choose(scores, uniforms, temperature=1.0, **rules)

    assert allowed[torch.arange(2000), drawn].all()

    if not rules:  # the first and the last token with a probability above 0
        expected = [row.nonzero().flatten()[0 if uniform == 0 else -1].item() for row in allowed]
        assert drawn.tolist() == expected


@pytest.mark.parametrize("off", [{"top_k": 0}, {"top_k": -1}, {"top_p": 1.0}, {"min_p": 0.0}])
def test_values_that_mean_off_change_nothing(off):
    scores, uniform = logits(batch_size=100), evenly(100)
    assert torch.equal(choose(scores, uniform, **off), choose(scores, uniform))


def test_rules_do_not_round_as_bfloat16_does():
    n = 40_000
    scores = torch.tensor([12.3125, -0.0, 7.03125, 7.0625], dtype=torch.bfloat16)
    drawn = choose(scores.expand(n, 4), evenly(n), temperature=3.0)
    expected = (scores.double() / 3).softmax(-1)
    assert ((torch.bincount(drawn, minlength=4) - n * expected).abs() <= 1).all()


@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999, 0.9999999])
@pytest.mark.parametrize("width", [0.01, 3.0])
def test_top_p_of_a_large_vocabulary_equals_hugging_face(transformers, top_p, width):
    """In some cases the most probable tokens reach top_p, in others all tokens are needed."""
    generator = torch.Generator().manual_seed(5)
    scores = width * torch.randn(4, 5000, generator=generator, dtype=torch.float64)
    expected = transformers.TopPLogitsWarper(top_p)(None, scores.clone())
    assert torch.equal(apply_top_p(scores, top_p), expected)
