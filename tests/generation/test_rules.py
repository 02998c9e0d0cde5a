"""The sampling rules equal Hugging Face's warpers, and choose draws what they leave in its right share."""

import math
import os

import pytest
import torch

from gptmini.generation import apply_temperature, apply_top_k, apply_top_p, check_sampling, choose

B, V = 5, 11
INF, NAN = float("inf"), float("nan")
LAST = math.nextafter(1, 0)  # the largest uniform number below 1


def logits(dtype=torch.float32, batch_size=B):
    torch.manual_seed(0)
    return 3 * torch.randn(batch_size, V, dtype=dtype)


def warped(name, setting, scores):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="the rules are measured against transformers")
    return getattr(transformers, name)(setting)(None, scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rule", "warper", "setting"),
    [(apply_temperature, "TemperatureLogitsWarper", t) for t in (0.1, 0.8, 1.0, 2.5)]
    + [(apply_top_k, "TopKLogitsWarper", k) for k in (1, 4, 11, 50)]
    + [(apply_top_p, "TopPLogitsWarper", p) for p in (1e-9, 0.3, 0.5, 0.9, 0.999)],
)
def test_rules_equal_hugging_face(rule, warper, setting, dtype):
    scores = logits(dtype)
    assert torch.equal(rule(scores, setting), warped(warper, setting, scores.clone()))


def test_top_p_keeps_the_token_that_reaches_the_sum():
    scores = torch.tensor([0.0625, 0.5, 0.125, 0.25, 0.0625]).log()
    kept = {p: (apply_top_p(scores, p) > -INF).nonzero().flatten().tolist() for p in (0.4, 0.6, 0.8)}
    assert kept == {0.4: [1], 0.6: [1, 3], 0.8: [1, 2, 3]}


def test_top_k_keeps_ties_with_the_last_kept():
    assert apply_top_k(torch.tensor([[2.0, 5.0, 2.0, 1.0]]), 2).tolist() == [[2.0, 5.0, 2.0, -INF]]


def test_temperature_zero_takes_the_most_probable_token_whatever_is_drawn():
    scores = torch.tensor([[0.1, 0.3, 0.2], [7.0, -1.0, 6.9]])
    for uniform in (0.0, 0.5, LAST):
        drawn = choose(scores, torch.full((2,), uniform, dtype=torch.float64), temperature=0, top_k=2, top_p=0.9)
        assert drawn.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("rules", "probabilities"),
    [
        ({"temperature": 1.0}, [0.1, 0.4, 0.0, 0.3, 0.2]),
        ({"temperature": 0.5}, [0.01 / 0.3, 0.16 / 0.3, 0.0, 0.09 / 0.3, 0.04 / 0.3]),  # squared
        ({"temperature": 1.0, "top_k": 2}, [0.0, 0.4 / 0.7, 0.0, 0.3 / 0.7, 0.0]),
        ({"temperature": 1.0, "top_p": 0.85}, [0.0, 0.4 / 0.9, 0.0, 0.3 / 0.9, 0.2 / 0.9]),
        # Top-p sees what top-k has left, 4/7 and 3/7, and what temperature has made, 16/30 and 9/30 and 4/30.
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.55}, [0.0, 1.0, 0.0, 0.0, 0.0]),
        ({"temperature": 0.5, "top_p": 0.8}, [0.0, 16 / 25, 0.0, 9 / 25, 0.0]),
    ],
)
def test_tokens_are_drawn_in_proportion_to_their_probability(rules, probabilities):
    n = 10_000
    uniform = (torch.arange(n, dtype=torch.float64) + 0.5) / n  # every share of [0, 1) alike
    scores = torch.tensor([0.1, 0.4, 0.0, 0.3, 0.2], dtype=torch.float64).log() + 7
    counts = torch.bincount(choose(scores.expand(n, 5), uniform, **rules), minlength=5)
    for count, probability in zip(counts.tolist(), probabilities, strict=True):
        assert count == 0 if probability == 0 else abs(count - n * probability) <= 1


@pytest.mark.parametrize("uniform", [0.0, LAST])
@pytest.mark.parametrize("rules", [{}, {"top_k": 3}, {"top_p": 0.7}, {"top_k": 6, "top_p": 0.9}])
def test_the_extremes_never_draw_a_token_of_no_probability(uniform, rules):
    scores = logits(batch_size=2000)
    scores[:, [0, 4, V - 1]] = -INF
    scores[::2, 1] = scores[::2, V - 2] = -2000.0  # underflows
    allowed = scores.double().softmax(-1) > 0
    if "top_k" in rules:
        allowed &= scores >= scores.topk(rules["top_k"]).values[:, -1:]
    drawn = choose(scores, torch.full((2000,), uniform, dtype=torch.float64), temperature=1.0, **rules)
    assert allowed[torch.arange(2000), drawn].all()
    if not rules:  # the first and the last token that can be drawn at all
        expected = [row.nonzero().flatten()[0 if uniform == 0 else -1].item() for row in allowed]
        assert drawn.tolist() == expected


def test_rows_are_drawn_each_from_its_own_number():
    scores, uniform = logits(), torch.tensor([0.05, 0.3, 0.5, 0.7, 0.95], dtype=torch.float64)
    alone = [choose(scores[i : i + 1], uniform[i : i + 1], temperature=1.3).item() for i in range(B)]
    assert choose(scores, uniform, temperature=1.3).tolist() == alone


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, got 0"),
        ({"temperature": -0.1}, r"temperature must be a finite number of at least 0 \(0 is greedy\), got -0.1"),
        ({"temperature": INF}, r"temperature must be a finite number of at least 0 \(0 is greedy\), got inf"),
        ({"temperature": NAN}, r"temperature must be a finite number of at least 0 \(0 is greedy\), got nan"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1, got 0"),
        ({"top_p": 0.0}, "top_p must be a number above 0 and at most 1, got 0.0"),
        ({"top_p": 1.1}, "top_p must be a number above 0 and at most 1, got 1.1"),
        ({"top_p": NAN}, "top_p must be a number above 0 and at most 1, got nan"),
    ],
)
def test_arguments_out_of_range_are_refused(changed, message):
    fine = {"max_new_tokens": 1, "temperature": 0, "top_k": 1, "top_p": 1.0}
    check_sampling(**fine)
    with pytest.raises(ValueError, match=message):
        check_sampling(**fine | changed)


@pytest.mark.parametrize("temperature", [1e-300, 1e-310, 5e-324])
def test_the_smallest_temperatures_are_greedy(temperature):
    scores = logits()
    drawn = choose(scores, torch.full((B,), 0.5, dtype=torch.float64), temperature=temperature)
    assert drawn.tolist() == scores.argmax(-1).tolist()


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_logit_that_is_no_finite_number_is_refused(odd, temperature):
    with pytest.raises(ValueError, match="logits must be finite"):
        choose(torch.tensor([[1.0, odd]]), torch.tensor([0.5], dtype=torch.float64), temperature=temperature)
