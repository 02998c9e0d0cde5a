"""The whole model: how it starts, that it learns, what it may see, and what it counts."""

import copy
import math
import shutil

import pytest
import torch

from gptmini.model import GPT, GPTConfig, new_gpt, next_token_loss, rounded_training_loss, training_loss
from gptmini.model.layers import ACTIVATION, Smear
from sizes import CONTEXT as T
from sizes import GPT2, MODERN, PRESETS, SMEARED, C, D, F, G, H, N, V

B = 5
GROUPED = pytest.mark.parametrize("n_kv_heads", [None, G, 1])


def make(preset, **changes):
    return new_gpt(GPTConfig(**preset | changes), seed=0)


def wide(preset, **changes):
    """Weights far from their start, so that every part of the model shows in the logits."""
    model = make(preset, **changes).eval()
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def draw(batch_size=B, length=T):
    torch.manual_seed(2)
    return torch.randint(V, (batch_size, length))


@PRESETS
def test_loss_at_step_0_is_near_log_of_the_vocabulary(preset):
    tokens = draw(batch_size=50)
    loss = next_token_loss(make(preset)(tokens[:, :-1]), tokens[:, 1:]).item()
    # GPT-2's logits are sums of 24 products of about 1 * 0.02: a tenth wide. Modern's head is zero.
    assert loss == pytest.approx(math.log(V), abs=0.03 if preset is GPT2 else 1e-6)


def test_gpt2_starts_with_the_published_deviations():
    model = make(GPT2, d_model=96, n_layers=3)
    residual = 0.02 / math.sqrt(2 * 3)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert (parameter == (1 if "norm" in name and name.endswith("weight") else 0)).all(), name
            continue
        std = residual if name.endswith("output.weight") else 0.02
        n = parameter.numel()  # four standard errors of a mean and of a deviation
        assert parameter.mean().item() == pytest.approx(0, abs=4 * std / math.sqrt(n)), name
        assert parameter.std().item() == pytest.approx(std, abs=4 * std / math.sqrt(2 * n)), name


def test_modern_starts_every_block_as_the_identity():
    model, tokens = make(MODERN, n_layers=3), draw()
    embedded = torch.nn.functional.rms_norm(model.embedding(tokens), (C,), eps=1e-6)
    for block in model.blocks:
        assert not block.attention.output.weight.any()
        assert not block.mlp.output.weight.any()
        assert block.attention.qkv.weight.std().item() == pytest.approx(C**-0.5, rel=0.1)
        assert block.mlp.input.weight.std().item() == pytest.approx(C**-0.5, rel=0.1)
    torch.testing.assert_close(model.hidden(tokens), embedded, atol=1e-5, rtol=0)
    assert not model.unembedding.weight.any()


@PRESETS
@pytest.mark.parametrize(("vocab_size", "padded"), [(11, 64), (64, 64), (65, 128)])
def test_vocabulary_is_padded_inside_and_never_seen_outside(preset, vocab_size, padded):
    model, tokens = make(preset, vocab_size=vocab_size), draw()
    assert model.embedding.weight.shape == (padded, C)
    assert model.config.tie_embeddings or model.unembedding.weight.shape == (padded, C)
    assert model(tokens).shape == (B, T, vocab_size)
    assert model.hidden(tokens).shape == (B, T, C)


@pytest.mark.parametrize(("n_kv_heads", "groups"), [(None, H), (G, G)])
def test_parameters_equal_the_hand_count(n_kv_heads, groups):
    projections = C * (H + 2 * groups) * D + C * C + C * F + F * C
    biases = (H + 2 * groups) * D + C + F + C
    gpt2 = V * C + T * C + N * (projections + biases + 4 * C) + 2 * C  # a layer norm has gain and bias
    assert make(GPT2, d_ff=F, n_kv_heads=n_kv_heads).n_parameters == gpt2
    assert make(MODERN, d_ff=F, n_kv_heads=n_kv_heads).n_parameters == 2 * V * C + N * projections


@pytest.mark.parametrize(("n_kv_heads", "groups"), [(None, H), (G, G)])
@PRESETS
def test_flops_equal_the_hand_count(preset, n_kv_heads, groups):
    weights = N * (C * (H + 2 * groups) * D + C * C + 2 * C * F) + V * C
    expected = 6 * weights + 12 * N * C * T
    assert make(preset, d_ff=F, n_kv_heads=n_kv_heads).flops_per_token == expected


def test_a_smear_adds_multiples_of_the_positions_before():
    smear, x = Smear(2, 3), torch.arange(24.0).view(2, 4, 3)
    assert torch.equal(smear(x), x)  # gains start at 0
    gains = [torch.tensor([0.5, 2.0, -1.0]), torch.tensor([10.0, 0.0, 1.0])]
    for parameter, gain in zip(smear.gains, gains, strict=True):
        parameter.data = gain
    for t in range(4):
        expected = x[:, t] + sum(gains[i] * x[:, t - 1 - i] for i in range(2) if t > i)
        torch.testing.assert_close(smear(x)[:, t], expected)


def test_a_smear_costs_one_gain_a_channel_and_place():
    assert make(SMEARED).n_parameters - make(MODERN).n_parameters == C * (3 + N * 2)


def test_gpt2_small_has_its_published_size():
    sizes = {"vocab_size": 50257, "context_length": 1024, "d_model": 768, "n_layers": 12, "n_heads": 12}
    with torch.device("meta"):
        model = GPT(GPTConfig(**GPT2 | sizes))
    assert model.n_parameters == 124_439_808
    # 12 * 12 * 768^2 in the blocks and 50257 * 768 in the head, times 6; then 12 * 12 * 768 * 1024.
    assert model.flops_per_token == 6 * (84_934_656 + 38_597_376) + 113_246_208


@PRESETS
def test_a_batch_is_overfit(preset):
    model, tokens = make(preset), draw()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # Rows that share their first tokens cannot be told apart there: those targets may keep some loss.
    each = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:], reduction="none").view(B, T - 1)
    assert each[:, 2:].mean().item() < 0.05


@GROUPED
@PRESETS
def test_changing_a_future_token_leaves_earlier_logits_unchanged(preset, n_kv_heads):
    model, tokens = wide(preset, n_kv_heads=n_kv_heads), draw()
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % V
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(-1).all()  # every later position sees the change


@pytest.mark.parametrize("chunks", [(13,), (1,) * 13, (4, 1, 8), (1, 5, 7)])
@GROUPED
@PRESETS
@torch.no_grad()
def test_cached_chunks_equal_one_pass(preset, n_kv_heads, chunks):
    model, tokens = wide(preset, n_kv_heads=n_kv_heads), draw()
    cache = model.new_cache(B)
    parts = [model(part, cache) for part in tokens.split(chunks, dim=1)]
    assert cache.slots.lengths == T
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("chunk", [1, 2])
@GROUPED
@PRESETS
@torch.no_grad()
def test_rows_of_different_lengths_go_on_as_each_does_alone(preset, n_kv_heads, chunk, static):
    """Rows are encoded in one padded pass, two of them, and one elsewhere; then all go on together."""
    model, tokens = wide(preset, n_kv_heads=n_kv_heads), draw(3)
    lengths = [7, 2, 0]
    cache, first = model.new_cache(3, static=static), model.new_cache(2, 7)
    model(tokens[:2, :7], first)  # what pads the second row is its own future here
    cache.fill([0, 1], first, 7)
    cache.fill([2], model.new_cache(1, 0), 0)
    for n_done in range(0, 6, chunk):
        if n_done == 4:  # the first row begins again in the middle of its text, as after a slide
            again = model.new_cache(1, 3)
            model(tokens[:1, 8:11], again)
            cache.fill([0], again, 3)
        if n_done in (0, 4):
            counts = [lengths[0] + n_done if n_done == 0 else 3, lengths[1] + n_done, lengths[2] + n_done]
            cache.slots.set_lengths(counts)
        starts = [7 + n_done, 2 + n_done, n_done]
        new = torch.stack([row[start : start + chunk] for row, start in zip(tokens, starts, strict=True)])
        logits = model(new, cache)
        for row, start in enumerate(starts):
            since = 8 if row == 0 and n_done >= 4 else 0
            expected = model(tokens[row : row + 1, since : start + chunk])[:, -chunk:]
            torch.testing.assert_close(logits[row : row + 1], expected, atol=1e-5, rtol=1e-5)
    assert cache.slots.lengths.tolist() == [5, 8, 6]


@torch.no_grad()
def test_rows_that_are_equally_long_again_need_no_mask():
    model = make(GPT2)
    cache = model.new_cache(3)
    cache.slots.set_lengths([4, 2, 4])
    model(draw()[:1, :1].expand(3, 1), cache)
    assert cache.slots.mask is not None
    cache.slots.set_lengths([4, 4, 4])
    model(draw()[:1, :1].expand(3, 1), cache)
    assert cache.slots.mask is None
    assert cache.slots.lengths == 5


@PRESETS
@torch.no_grad()
def test_more_than_context_length_is_refused(preset):
    model, cache = make(preset), make(preset).new_cache(B)
    with pytest.raises(ValueError, match="input must fit context_length=13 tokens, got 14"):
        model(draw(length=14))
    model(draw(length=9), cache)
    with pytest.raises(ValueError, match="a cache of 13 tokens cannot hold 15; encode fewer anew"):
        model(draw(length=6), cache)
    cache.slots.set_lengths([12] * (B - 1) + [9])
    with pytest.raises(ValueError, match="a cache of 13 tokens cannot hold 14; encode fewer anew"):
        model(draw(length=2), cache)


@PRESETS
def test_first_weights_follow_from_the_seed_alone(preset):
    config = GPTConfig(**preset)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = new_gpt(config, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    again, other = new_gpt(config, seed=7), new_gpt(config, seed=8)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "1", None])
def test_a_seed_that_is_no_such_number_is_refused(seed):
    with pytest.raises(ValueError, match=f"^seed must be a whole number from 0 to 9223372036854775807, got {seed!r}$"):
        new_gpt(GPTConfig(**GPT2), seed)


def test_loss_gives_hand_computed_numbers():
    # Probabilities 1/2, 1/4, 1/4 and 1/8, 3/4, 1/8, unnormalised: adding a constant to the logits changes nothing.
    logits = torch.tensor([[[2.0, 1.0, 1.0], [1.0, 6.0, 1.0]]]).log() + 5
    targets = torch.tensor([[0, 2]])
    each = torch.tensor([0.6931472, 2.0794415])  # ln 2, ln 8
    torch.testing.assert_close(next_token_loss(logits, targets, reduction="none"), each)
    assert next_token_loss(logits, targets, reduction="sum").item() == pytest.approx(2.7725887)
    assert next_token_loss(logits, targets).item() == pytest.approx(1.3862944)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_loss_equals_a_written_out_log_softmax_and_narrow_logits_are_widened(dtype):
    torch.manual_seed(0)
    logits, targets = (4 * torch.randn(B, T, V)).to(dtype), torch.randint(V, (B, T))
    exact = logits.double()
    expected = exact.exp().sum(-1).log() - exact.gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # (B, T)
    got = next_token_loss(logits, targets, reduction="none")
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5  # bfloat16 would be off by 1e-2
    torch.testing.assert_close(got.double(), expected.flatten(), atol=tolerance, rtol=0)
    mean = next_token_loss(logits, targets).double()
    torch.testing.assert_close(mean, expected.mean(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@PRESETS
def test_a_loss_by_pieces_has_the_loss_and_gradients_of_the_whole(preset, dtype, monkeypatch):
    tokens, targets = draw()[:, :-1], draw()[:, 1:]
    results, seen = [], []
    for most in (10**9, 7 * V):  # seven rows a piece, and four in the last
        monkeypatch.setattr("gptmini.model.loss.LOGITS_AT_ONCE", most)
        model = wide(preset)
        unembed = model.unembed
        model.unembed = lambda hidden, unembed=unembed: seen.append(hidden.shape[1]) or unembed(hidden)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = training_loss(model, tokens, targets)
        (loss * 0.5).backward()  # as a share of several micro-steps
        results.append((loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}))
    assert seen == [T - 1] + [7] * 8 + [4]  # 60 rows
    (loss, whole), (piecewise, pieces) = results
    tolerance = {"atol": 1e-5, "rtol": 1e-4} if dtype is torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(piecewise, loss, **tolerance)
    for name, gradient in whole.items():
        torch.testing.assert_close(pieces[name], gradient, **tolerance, msg=name)


def test_a_loss_by_pieces_leaves_a_frozen_unembedding_alone(monkeypatch):
    monkeypatch.setattr("gptmini.model.loss.LOGITS_AT_ONCE", 7 * V)
    model, tokens = wide(MODERN), draw()
    model.unembedding.weight.requires_grad_(False)
    training_loss(model, tokens[:, :-1], tokens[:, 1:]).backward()
    assert model.unembedding.weight.grad is None
    assert model.embedding.weight.grad.any()


@pytest.mark.slow
def test_a_smeared_model_compiles_to_the_same_loss():
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler on a CPU")
    model, tokens = wide(SMEARED), draw()
    losses = [loss(model, tokens[:, :-1], tokens[:, 1:]) for loss in (training_loss, torch.compile(training_loss))]
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("gelu_exact", lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
        ("gelu", lambda x: x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("relu2", lambda x: max(x, 0.0) ** 2),
    ],
)
def test_an_activation_is_its_formula(name, formula):
    inputs = [-3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0]
    outputs = ACTIVATION[name](torch.tensor(inputs, dtype=torch.float64)).tolist()
    assert outputs == pytest.approx([formula(x) for x in inputs], abs=1e-12)


@PRESETS
@pytest.mark.parametrize("pieces", [False, True])
def test_a_rounded_loss_is_that_of_the_model_with_rounded_weights(preset, pieces, monkeypatch):
    if pieces:
        monkeypatch.setattr("gptmini.model.loss.LOGITS_AT_ONCE", 7 * V)
    model = wide(preset)
    rounded = copy.deepcopy(model).bfloat16()
    tokens = draw()
    batch = (tokens[:, :-1], tokens[:, 1:])
    loss = rounded_training_loss(model, torch.bfloat16)(*batch)
    expected = training_loss(rounded, *batch)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)

    loss.backward()
    expected.backward()
    for ours, theirs in zip(model.parameters(), rounded.parameters(), strict=True):
        assert ours.dtype == ours.grad.dtype == torch.float32
        torch.testing.assert_close(ours.grad, theirs.grad.float(), rtol=0, atol=0)


@PRESETS
def test_a_rounded_loss_keeps_statistics_and_loss_in_float32(preset):
    model = wide(preset)
    tokens = draw(batch_size=50)
    batch = (tokens[:, :-1], tokens[:, 1:])
    exact = training_loss(model, *batch)
    exact.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    rounded = rounded_training_loss(model, torch.bfloat16)(*batch)
    rounded.backward()
    # Rounded to 8 bits a number is off by 2^-9 at most; a mean of 600 losses by much less, unless it is itself rounded.
    assert rounded.item() == pytest.approx(exact.item(), rel=0.01)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.cosine_similarity(parameter.grad.flatten(), gradient.flatten(), dim=0) > 0.98
