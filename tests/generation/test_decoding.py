"""The decoding loop equals an oracle without a cache, in every batch, also beyond the context."""

import hashlib
import itertools
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from generation.decoders import GROUPED, PRESETS, PROMPTS, SETTINGS, generate, make
from gptmini.generation import Decoder, Rules, choose, uniforms
from gptmini.generation.decoding import NOT_FINITE
from gptmini.model import GPT
from sizes import GPT2, LLAMA, SMEARED, V


def generator_of(seed, stream):
    """Return torch's generator with the seed of a stream."""
    digest = hashlib.blake2b(f"({seed}, {stream})".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


@torch.no_grad()
def oracle(model, prompt, n_tokens, *, seed=7, stream=0, **settings):
    """Draw one sample and recompute the entire window at each step; a full window first shrinks to its newest half."""
    generator = generator_of(seed, stream)
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
    expected = [oracle(model, prompt, 40, stream=i, **SETTINGS) for i, prompt in enumerate(PROMPTS)]

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
            streams=order,
            ends=enumerate(lengths),
            **SETTINGS,
        )

        for i, length, ids in zip(order, lengths, drawn, strict=True):
            assert ids == expected[i][:length]


def test_a_seed_and_a_stream_fix_a_sample_and_samples_differ():
    model = make()
    prompts = [PROMPTS[0]] * 3
    before = torch.get_rng_state()
    first = generate(model, prompts, seed=1)
    torch.rand(3)

    assert generate(model, prompts, seed=1) == first
    assert len({tuple(ids) for ids in first}) == 3
    assert generate(model, prompts, seed=1, streams=[2, 2, 0]) == [first[2], first[2], first[0]]
    assert not set(map(tuple, generate(model, prompts, seed=2))) & set(map(tuple, first))

    torch.set_rng_state(before)
    generate(model, n_tokens=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_stream_is_torchs_generator_one_number_at_a_time():
    generator = generator_of(5, 9)
    expected = [torch.rand((), dtype=torch.float64, generator=generator).item() for _ in range(200)]
    assert list(itertools.islice(uniforms(5, 9), 200)) == expected


def test_no_two_pairs_of_seed_and_stream_share_their_numbers():
    seeds = (-1_000_003, -1, 0, 1, 2, 1_000_003, 2**63, 2**64)
    streams = (0, 1, 2, 1_000_003, 2_000_006)
    firsts = [next(uniforms(seed, stream)) for seed in seeds for stream in streams]
    assert len(set(firsts)) == len(firsts)


@PRESETS
def test_log_probabilities_are_those_of_the_model_before_any_rule(preset):
    model = make(preset)
    prompt = PROMPTS[0]
    decoder = Decoder(model)
    decoder.add(prompt, Rules(**SETTINGS), log_probabilities=True, n_likeliest=3)
    drawn = [decoder.draw()[0] for _ in range(6)]

    ids = prompt + [token for _, token, _, _ in drawn]
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0, len(prompt) - 1 : -1].log_softmax(-1)  # (6, V)
    values, likeliest = expected.topk(3)
    for i, (_, token, log_probability, pairs) in enumerate(drawn):
        assert log_probability == pytest.approx(expected[i, token].item(), abs=1e-9)
        assert [found for found, _ in pairs] == likeliest[i].tolist()
        assert [found for _, found in pairs] == pytest.approx(values[i].tolist(), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "backend"),
    [
        # Tracing the model shows whether a step is compiled once.
        (GPT2, "eager"),
        (LLAMA | GROUPED, "eager"),
        # The modern model with smears. The C++ compiler alone takes longer than all other tests of this package.
        (SMEARED | GROUPED, "inductor"),
    ],
    ids=["gpt2", "llama", "smeared"],
)
def test_a_compiled_step_draws_the_same_tokens_and_is_compiled_once(preset, backend, monkeypatch):
    model = make(preset, n_layers=1)
    expected = generate(model, **SETTINGS)

    if backend != "inductor":
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch.compiler.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert generate(model, compile=True, **SETTINGS) == expected


@pytest.mark.slow
def test_each_batch_size_is_compiled_for_itself(monkeypatch):
    model = make(LLAMA)
    sizes = []

    def backend(graph, inputs, **options):
        # A graph for any batch size would have the size as an input.
        sizes.append([value for value in inputs if not isinstance(value, torch.Tensor)])
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch.compiler.reset()
    for n_rows in (1, 2, 3):
        prompts = PROMPTS[:n_rows]
        expected = generate(model, prompts, 3, batch_size=n_rows)
        assert generate(model, prompts, 3, batch_size=n_rows, compile=True) == expected
    assert sizes == [[], [], []]


class ScalarReads(TorchDispatchMode):
    """Counts single numbers that the host reads from a tensor; each read would wait for the GPU."""

    n_reads = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.n_reads += function is torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **keywords or {})


def test_rows_of_different_lengths_are_decoded_without_reading_a_number_off_the_device():
    model = make(LLAMA)
    decoder = Decoder(model, batch_size=5)
    for prompt in PROMPTS:
        decoder.add(prompt, Rules(temperature=0))
    decoder.draw()  # encodes the prompts
    assert isinstance(decoder._slots.lengths, torch.Tensor)

    with ScalarReads() as reads:
        for _ in range(3):
            decoder.draw()
    assert reads.n_reads == 0


def test_logits_that_are_not_finite_end_their_own_sample_only():
    model = make(LLAMA)
    with torch.no_grad():
        model.embedding.weight[5] = torch.nan
        model.unembedding.weight[5] = 0  # so that no sample draws this token
    rules = Rules(temperature=0)
    alone = {i: drawn_alone(model, [i, 2], rules, seed=0, n_tokens=6) for i in (1, 3)}
    assert 5 not in alone[1] + alone[3]

    decoder = Decoder(model, batch_size=3, reuse=True)
    first = decoder.add([1, 2], rules)
    bad = decoder.add([4, 5, 4], rules)
    found = [decoder.draw()]
    assert [drawn.token for drawn in found[0] if drawn.sample == bad] == [NOT_FINITE]
    decoder.end(bad)
    second = decoder.add([3, 2], rules)
    found += [decoder.draw() for _ in range(6)]
    for sample, tokens in ((first, alone[1]), (second, alone[3])):
        drawn = [one.token for step in found for one in step if one.sample == sample]
        assert drawn[:6] == tokens

    # The row has no trace of it: its cache is also visible to shorter samples, behind a mask.
    assert all(tensor.isfinite().all() for tensor in decoder.cache.tensors)


OWN_RULES = [
    Rules(temperature=0),
    Rules(temperature=1.5, top_k=4),
    Rules(temperature=0.7, repetition_penalty=1.4),
    Rules(temperature=1.1, top_p=0.9),
    Rules(temperature=0),
]


def drawn_alone(model, prompt, rules, *, seed, n_tokens):
    """The ids of a sample that has a decoder of its own."""
    decoder = Decoder(model)
    decoder.add(prompt, rules, seed=seed)
    return [decoder.draw()[0].token for _ in range(n_tokens)]


@PRESETS
def test_samples_that_come_and_go_with_rules_and_seeds_of_their_own_are_those_drawn_alone(preset):
    model = make(preset)
    decoder = Decoder(model, batch_size=3, reuse=True)
    arrivals = {0: [0, 1], 4: [2, 3], 11: [4]}  # samples to add before a step
    lengths = [9, 30, 5, 12, 25]  # some exceed the context
    found = [[] for _ in PROMPTS]
    order = []

    for step in range(200):
        for i in arrivals.get(step, []):
            order.append(i)
            assert decoder.add(PROMPTS[i], OWN_RULES[i], seed=i) == len(order) - 1
        drawn = decoder.draw()
        if not drawn:
            break
        for number, token, _, _ in drawn:
            ids = found[order[number]]
            ids.append(token)
            if len(ids) == lengths[order[number]]:
                decoder.end(number)

    for i, prompt in enumerate(PROMPTS):
        assert found[i] == drawn_alone(model, prompt, OWN_RULES[i], seed=i, n_tokens=lengths[i])


@PRESETS
def test_the_next_turn_of_a_chat_encodes_only_what_is_new(preset, monkeypatch):
    model = make(preset, context_length=40)
    decoder = Decoder(model, batch_size=2, reuse=True)
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
                number = decoder.add(chat, Rules(temperature=1.2), seed=seed)
                answer = [decoder.draw()[0].token for _ in range(3)]
                decoder.end(number)
            # The last id of an answer was drawn and not encoded; the newest id of a prompt is not either.
            assert encoded == ([len(chat) - 1] if turn == 0 else [2])
            expected = drawn_alone(model, chat, Rules(temperature=1.2), seed=seed, n_tokens=3)
            assert answer == expected
            chat += [*answer, turn + 1, seed + 8]


@pytest.mark.parametrize("preset", [LLAMA, SMEARED], ids=["llama", "smeared"])
def test_a_cache_that_is_smaller_than_the_context_acts_like_a_shorter_context(preset):
    rules = Rules(temperature=1.2)
    decoder = Decoder(make(preset, context_length=40), capacity=preset["context_length"])
    for prompt in PROMPTS:  # one is longer than the cache
        number = decoder.add(prompt, rules, seed=1)
        found = [decoder.draw()[0].token for _ in range(30)]
        decoder.end(number)
        assert found == drawn_alone(make(preset), prompt, rules, seed=1, n_tokens=30)
