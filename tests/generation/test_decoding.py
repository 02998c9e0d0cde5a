"""The decoding loop equals an oracle without a cache, in every batch, also beyond the context."""

import hashlib
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from generation.decoders import GROUPED, LETTERS, PRESETS, PROMPTS, SETTINGS, generate, make
from gptmini.generation import CompiledSession, Request, Rules, Session
from gptmini.generation.rules import choose
from gptmini.model import GPT
from sizes import GPT2, LLAMA, SMEARED, V


def generator_of(seed, series):
    """Return torch's generator with the seed of a series."""
    digest = hashlib.blake2b(f"({seed}, {series})".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


@torch.no_grad()
def oracle(model, prompt, n_tokens, *, seed=7, series=0, **settings):
    """Draw one sample and recompute the entire window at each step; a full window first shrinks to its newest half."""
    generator = generator_of(seed, series)
    window = prompt[-model.config.context_length :]
    drawn = []

    for _ in range(n_tokens):
        if len(window) > model.config.context_length:
            window = window[-max(1, model.config.context_length // 2) :]
        logits = model(torch.tensor([window]))[:, -1]
        seen = torch.zeros(1, V, dtype=torch.bool)
        seen[0, prompt + drawn] = True
        uniform = torch.rand(1, generator=generator, dtype=torch.float64)
        drawn.append(choose(logits, uniform, Rules(**settings), seen).item())
        window = [*window, drawn[-1]]

    return drawn


@pytest.mark.slow
@pytest.mark.parametrize("context_length", [13, 2, 1])
@PRESETS
def test_greedy_decoding_equals_recomputing_the_window_also_past_the_context(
    preset, context_length
):
    model = make(preset, context_length=context_length)
    expected = [oracle(model, prompt, 40, temperature=0) for prompt in PROMPTS]

    assert len({token for ids in expected for token in ids}) > 2
    assert generate(model, temperature=0) == expected


@pytest.mark.slow
@PRESETS
def test_neither_batch_nor_order_nor_ends_of_others_change_a_sample(preset):
    model = make(preset)
    expected = [oracle(model, prompt, 40, series=i, **SETTINGS) for i, prompt in enumerate(PROMPTS)]

    for batch_size in (1, 2, 9):  # 9 is larger than the number of prompts
        assert generate(model, batch_size=batch_size, **SETTINGS) == expected

    for batch_size in (3, 4):
        generator = torch.Generator().manual_seed(batch_size)
        order = torch.randperm(5, generator=generator).tolist()
        lengths = torch.randint(1, 41, (5,), generator=generator).tolist()
        drawn = generate(
            model,
            [PROMPTS[i] for i in order],
            batch_size=batch_size,
            series=order,
            ends=enumerate(lengths),
            **SETTINGS,
        )

        for i, length, ids in zip(order, lengths, drawn, strict=True):
            assert ids == expected[i][:length]


def test_a_seed_and_a_series_fix_a_sample_and_samples_differ():
    model = make()
    prompts = [PROMPTS[0]] * 3
    before = torch.get_rng_state()
    first = generate(model, prompts, seed=1)
    torch.rand(3)

    assert generate(model, prompts, seed=1) == first
    assert len({tuple(ids) for ids in first}) == 3
    assert generate(model, prompts, seed=1, series=[2, 2, 0]) == [first[2], first[2], first[0]]
    assert not set(map(tuple, generate(model, prompts, seed=2))) & set(map(tuple, first))

    torch.set_rng_state(before)
    generate(model, n_tokens=2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("preset", [GPT2, SMEARED | GROUPED], ids=["gpt2", "smeared"])
def test_a_compiled_step_draws_the_same_tokens_and_is_compiled_once(preset, monkeypatch):
    model = make(preset)
    expected = generate(model, **SETTINGS)

    # The compiler of inductor would take half a minute; tests/gpu has it.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert generate(model, compile=True, **SETTINGS) == expected


def test_a_compiled_step_follows_the_rules_of_each_row_also_when_a_row_is_refilled(monkeypatch):
    model = make(LLAMA)
    rules = [Rules(temperature=0, repetition_penalty=1.3), Rules(temperature=1.5, top_k=3)]

    def draw(kind):
        session = kind(model, LETTERS, batch_size=2, capacity=30)
        for series, prompt in enumerate(PROMPTS):
            request = Request(prompt=prompt, rules=rules[series % 2], seed=0, series=series)
            session.add(request)
        drawn = []
        while pieces := session.step():
            drawn += [(piece.sample, piece.token) for piece in pieces]
            for piece in pieces:
                if sum(sample == piece.sample for sample, _ in drawn) == 5 + piece.sample:
                    session.end(piece.sample)
        return drawn

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    assert draw(CompiledSession) == draw(Session)


def test_more_sessions_than_torch_keeps_by_default_can_be_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    model = make()
    for n_tokens in range(1, 11):
        ids = generate(model, [[1, 2]], n_tokens, compile=True, temperature=0)
        assert ids == generate(model, [[1, 2]], n_tokens, temperature=0)


class ScalarReads(TorchDispatchMode):
    """Counts single numbers that the host reads from a tensor; each read would wait for the GPU."""

    n_reads = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.n_reads += function is torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **keywords or {})


def test_rows_of_different_lengths_are_decoded_without_reading_a_number_off_the_device():
    model = make(LLAMA)
    session = Session(model, LETTERS, batch_size=5)
    for prompt in PROMPTS:
        session.add(Request(prompt=prompt, rules=Rules(temperature=0), seed=0))
    session.step()  # encodes the prompts
    assert isinstance(session._part.slots.lengths, torch.Tensor)

    with ScalarReads() as reads:
        for _ in range(3):
            session.step()
    assert reads.n_reads == 0


def test_logits_that_are_not_finite_end_their_own_sample_only():
    model = make(LLAMA)
    with torch.no_grad():
        model.embedding.weight[5] = torch.nan
        model.unembedding.weight[5] = 0  # so that no sample draws this token
    rules = Rules(temperature=0)
    alone = {i: drawn_alone(model, [i, 2], rules, seed=0, n_tokens=6) for i in (1, 3)}
    assert 5 not in alone[1] + alone[3]

    session = Session(model, LETTERS, batch_size=3, reuse=True)
    first = session.add(Request(prompt=[1, 2], rules=rules, seed=0))
    bad = session.add(Request(prompt=[4, 5, 4], rules=rules, seed=0))
    found = [session.step()]
    assert [piece.finish for piece in found[0] if piece.sample == bad] == ["not_finite"]
    second = session.add(Request(prompt=[3, 2], rules=rules, seed=0))
    found += [session.step() for _ in range(6)]
    for sample, tokens in ((first, alone[1]), (second, alone[3])):
        drawn = [one.token for step in found for one in step if one.sample == sample]
        assert drawn[:6] == tokens

    # The row has no trace of it: its cache is also visible to shorter samples, behind a mask.
    assert all(tensor.isfinite().all() for tensor in session.cache.tensors)


def drawn_alone(model, prompt, rules, *, seed, n_tokens):
    """The ids of a sample that has a session of its own."""
    session = Session(model, LETTERS)
    session.add(Request(prompt=prompt, rules=rules, seed=seed))
    return [session.step()[0].token for _ in range(n_tokens)]


@pytest.mark.slow
@PRESETS
def test_the_next_turn_of_a_chat_encodes_only_what_is_new(preset, monkeypatch):
    model = make(preset, context_length=40)
    session = Session(model, LETTERS, batch_size=2, reuse=True)
    encoded = []
    hidden = GPT.hidden

    def count(self, tokens, cache):
        encoded.append(tokens.numel())
        return hidden(self, tokens, cache)

    # Two chats take turns; a message of two ids follows each answer of three.
    chats = [[1, 2, 3], [4, 5, 6, 7]]
    for turn in range(3):
        for seed, chat in enumerate(chats):
            encoded.clear()
            with monkeypatch.context() as patch:
                patch.setattr(GPT, "hidden", count)
                number = session.add(Request(prompt=chat, rules=Rules(temperature=1.2), seed=seed))
                answer = [session.step()[0].token for _ in range(3)]
                session.end(number)
            # The last id of an answer was drawn and not encoded. The first step encodes the newest id of a prompt.
            assert encoded == [len(chat) - 1 if turn == 0 else 2, 1, 1, 1]
            expected = drawn_alone(model, chat, Rules(temperature=1.2), seed=seed, n_tokens=3)
            assert answer == expected
            chat += [*answer, turn + 1, seed + 8]


@pytest.mark.slow
@pytest.mark.parametrize("preset", [LLAMA, SMEARED], ids=["llama", "smeared"])
def test_a_cache_that_is_smaller_than_the_context_acts_like_a_shorter_context(preset):
    rules = Rules(temperature=1.2)
    session = Session(make(preset, context_length=40), LETTERS, capacity=preset["context_length"])
    for prompt in PROMPTS:  # one is longer than the cache
        number = session.add(Request(prompt=prompt, rules=rules, seed=1))
        found = [session.step()[0].token for _ in range(30)]
        session.end(number)
        assert found == drawn_alone(make(preset), prompt, rules, seed=1, n_tokens=30)
