"""Text streams in complete characters, ends before a stop string, and does not depend on other samples."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gptmini.generation import (
    Request,
    Rules,
    generate,
    generate_stream,
    prompt_ids,
)
from gptmini.generation.sample import Sample
from gptmini.system.errors import UserError
from gptmini.tokenizer import CharTokenizer, byte
from sizes import TALKATIVE
from toys import wide_gpt

LETTERS = CharTokenizer("abcdefghij", end_of_text=True)


def make(**changes):
    """Return a float64 model that draws every letter; end-of-text is its eleventh token."""
    return wide_gpt(TALKATIVE | changes, dtype=torch.float64).eval()


def samples(prompts="abc", n_tokens=40, **options):
    """Return each sample as (text, reason of its end, ids)."""
    model = options.pop("model", None) or make()
    pieces = generate_stream(model, LETTERS, prompts, max_new_tokens=n_tokens, **options)

    found = {}
    for piece in pieces:
        text, _, ids = found.get(piece.sample, ("", None, []))
        found[piece.sample] = (text + piece.text, piece.finish, [*ids, piece.token])

    return [found[i] for i in range(len(found))]


def generated(prompts="abc", n_tokens=40, model=None, **options):
    """Return the texts of gptmini.generate."""
    return generate(model or make(), LETTERS, prompts, max_new_tokens=n_tokens, **options)


def test_a_sample_ends_at_end_of_text_unless_told_otherwise():
    ((endless, finish, ids),) = samples(ignore_end_of_text=True, temperature=2.0)
    assert (len(ids), finish) == (40, "length")
    assert endless == LETTERS.decode(ids)

    at = ids.index(10)
    ((text, finish, ended),) = samples(temperature=2.0)
    assert (text, finish, ended) == (LETTERS.decode(ids[:at]), "end_of_text", ids[: at + 1])


@pytest.mark.slow
def test_neither_other_prompts_nor_the_batch_nor_more_samples_change_a_sample():
    prompts = ["abc", "j", "", "abcdefghijabcdefghij"]
    together = samples(prompts, num_samples=3, batch_size=5, temperature=1.3)
    assert len(together) == 12
    assert len({text for text, _, _ in together[:3]}) == 3

    # A sample depends only on its prompt, the position of the prompt, and its number among the samples of the prompt.
    for i, prompt in enumerate(prompts):
        others = ["hi" * n for n in range(i)]
        found = samples([*others, prompt], num_samples=3, temperature=1.3)
        assert found[3 * i :] == together[3 * i : 3 * i + 3]
    assert samples(prompts, batch_size=2, temperature=1.3) == together[::3]


@pytest.mark.parametrize("n_letters", [1, 2, 3])
def test_a_stop_string_ends_the_sample_before_it_also_across_tokens(n_letters):
    ((whole, _, ids),) = samples(ignore_end_of_text=True)
    stop = whole[10 : 10 + n_letters]
    ((text, finish, drawn),) = samples(ignore_end_of_text=True, stop=stop)

    first = whole.index(stop)
    assert (text, finish) == (whole[:first], "stop")
    assert drawn == ids[: first + n_letters]


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_in_its_mode_and_drops_nothing(training):
    expected = samples(model=make())
    model = make(dropout=0.5).train(training)
    stream = generate_stream(model, LETTERS, "abc", max_new_tokens=20)
    next(stream)

    assert not model.training

    stream.close()
    assert model.training == training
    assert samples(model=model) == expected
    assert model.training == training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"num_samples": 10**20}, "num_samples times the number of prompts must be at most"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"seed": 1.5}, "seed .* 1.5"),
        ({"temperature": "hot"}, "temperature.* 'hot'"),
        ({"max_tokens": 5}, "max_tokens.* max_new_tokens"),
        ({"stop": ["a", ""]}, "a stop string must not be empty"),
        ({"prompts": ["abc", "xyz"]}, "got 'x'"),
    ],
)
@pytest.mark.parametrize("call", [samples, generated])
def test_bad_arguments_are_refused_in_one_line(call, options, message):
    with pytest.raises(UserError, match=message) as caught:
        call(**options)
    assert "http" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_prompt_text_becomes_what_starts_a_document():
    assert prompt_ids(byte([]), "") == [256]
    assert prompt_ids(CharTokenizer("abc", end_of_text=False), "") == [0]
    assert prompt_ids(CharTokenizer("abc", end_of_text=True), "") == [3]
    assert prompt_ids(CharTokenizer("abc", end_of_text=True), "cab") == [2, 0, 1]


def stream(tokenizer, ids, stop=()):
    """Return the pieces up to a stop string, and the rest of the text."""
    sample = Sample(0, Request(rules=Rules(), stop=stop), tokenizer)
    pieces = []
    for i in ids:
        piece, finish = sample.add(i)
        pieces.append(piece)
        if finish is not None:
            return pieces, ""
    return pieces, sample.add(tokenizer.end_of_text)[0]


@given(st.lists(st.binary(max_size=4) | st.sampled_from("aé€😀").map(str.encode)))
def test_any_bytes_stream_to_what_they_decode_to(parts):
    tokenizer = byte([])
    ids = [*b"".join(parts)]
    pieces, rest = stream(tokenizer, ids)
    assert "".join(pieces) + rest == tokenizer.decode(ids)


@given(st.text("aé€😀🏽"))
def test_each_character_comes_with_its_last_byte(text):
    tokenizer = byte([])
    pieces, rest = stream(tokenizer, tokenizer.encode(text))
    assert [piece for piece in pieces if piece] == list(text)
    assert rest == ""


@given(
    st.lists(st.sampled_from("abé€")), st.lists(st.text("abé€", min_size=1, max_size=4), max_size=3)
)
def test_streamed_text_ends_where_a_stop_string_is_first_complete(letters, stops):
    text = "".join(letters)
    tokenizer = byte([])
    ends = [end for end in range(len(text) + 1) if text[:end].endswith(tuple(stops))]

    expected = text
    if stops and ends:
        longest = max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))
        expected = text[: ends[0] - longest]

    pieces, rest = stream(tokenizer, tokenizer.encode(text), stops)
    assert "".join(pieces) + rest == expected
    # Every piece is final.
    assert all(expected.startswith("".join(pieces[:i])) for i in range(len(pieces)))


def test_text_is_held_back_only_while_a_stop_string_may_follow():
    pieces, rest = stream(LETTERS, LETTERS.encode("abcabdabce"), ["abce"])
    assert pieces == ["", "", "", "abc", "", "abd", "", "", "", ""]
    assert rest == ""

    pieces, rest = stream(LETTERS, LETTERS.encode("jabc"), ["abce"])
    assert pieces == ["j", "", "", ""]
    assert rest == "abc"


def test_logits_that_are_not_finite_are_an_error():
    model = make()
    next(model.parameters()).data.fill_(torch.nan)
    with pytest.raises(UserError, match="finite"):
        generated(model=model)


def test_generate_returns_what_the_stream_yields():
    model = wide_gpt(TALKATIVE | {"vocab_size": 257}).eval()
    options = {"max_new_tokens": 9, "seed": 3, "num_samples": 2, "temperature": 0.9}
    prompts = ["ab", "c", ""]
    texts = generate(model, byte([]), prompts, batch_size=4, **options)
    streamed = [""] * 6
    for piece in generate_stream(model, byte([]), prompts, **options):
        streamed[piece.sample] += piece.text
    assert texts == streamed
    assert generate(model, byte([]), "ab", **options) == texts[:2]
    assert generate(model, byte([]), [], max_new_tokens=2) == []
