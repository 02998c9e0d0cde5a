"""Exported tokenizers give the same ids as gptmini's own, in the tokenizers library and in transformers."""

import json
import os
import random

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from gptmini import tokenizer
from gptmini.interop.tokenizer_reading import read_tokenizer
from gptmini.interop.tokenizer_writing import list_merges, to_tokenizers
from gptmini.loading import OfModelSettings, load_tokenizer
from gptmini.system.errors import UserError
from gptmini.tokenizer import LibraryTokenizer
from gptmini.tokenizer.letters import bytes_to_letters
from interop.library_tokenizers import learned, of_sentence_piece
from tokenizer.texts import TRAIN, WORDS, random_texts, tokenizer_of_gpt2
from toys import documents_of

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# All characters of the first plane, but only samples of Chinese and Korean, which no pattern distinguishes, and of
# other planes.
CODES = [*range(0x3400), *range(0x3400, 0xA000, 64), *range(0xA000, 0xAC00)]
CODES += [*range(0xAC00, 0xD800, 64), *range(0xE000, 0x20000, 8), *range(0x20000, 0x110000, 512)]
CHARACTERS = "".join(map(chr, CODES))


def made(kind):
    """Return a tokenizer of a kind; char has the characters of all texts in these tests."""
    if kind == "char":
        texts = [*TRAIN, *random_texts(1000, seed=5), CHARACTERS]
        return tokenizer.character(documents_of([*texts, "two documents"]))
    if kind == "bpe":
        return tokenizer.bpe(documents_of(TRAIN), vocab_size=400)
    if kind == "byte":
        return tokenizer.byte([])
    return tokenizer_of_gpt2()


@pytest.fixture(params=["byte", "bpe", "gpt2", "char"], scope="module")
def both(request):
    """A tokenizer of gptmini and its export."""
    ours = made(request.param)
    return ours, to_tokenizers(ours)


def assert_same(both, texts):
    """Assert that both tokenizers give the same ids, which decode to the texts."""
    ours, theirs = both
    expected = [ids.tolist() for ids in ours.encode_batch(texts)]
    got = [encoded.ids for encoded in theirs.encode_batch(texts)]
    assert got == expected
    assert [theirs.decode(ids) for ids in got[:50]] == list(texts[:50])


def test_random_texts_have_the_same_ids(both):
    assert_same(both, random_texts(1000, seed=5))
    assert_same(both, ["", WORDS, "\n", " " * 40 + "a"])


@pytest.mark.parametrize("both", ["bpe", "gpt2"], indirect=True)
def test_texts_of_cut_and_joined_tokens_have_the_same_ids(both):
    """If tokens are adjacent or cut, merges compete; bytes that are not UTF-8 are dropped."""
    draw = random.Random(7)
    texts = []
    for _ in range(3000):
        tokens = [draw.choice(both[0].ranks) for _ in range(draw.randrange(1, 5))]
        cut = [token[draw.randrange(len(token)) :] for token in tokens]
        texts.append(b"".join(draw.choice([tokens, cut])).decode(errors="ignore"))
    assert_same(both, texts)


@pytest.mark.slow
@pytest.mark.parametrize("both", ["bpe", "char"], indirect=True)
def test_characters_of_every_kind_have_the_same_ids_in_five_contexts(both):
    ours, theirs = both
    for first in range(0, len(CHARACTERS), 4096):
        # Between letters, alone, doubled, after a digit, and after an apostrophe.
        some = CHARACTERS[first : first + 4096]
        text = "".join(f"a{c}b {c} {c}{c}1{c}'{c}s\n" for c in some)
        assert theirs.encode(text).ids == ours.encode(text)


def test_every_way_to_make_a_token_is_a_merge():
    ranks = [bytes([i]) for i in range(256)] + [b"ab", b"bc", b"abc", b"xyz"]
    assert list_merges(ranks) == [("a", "b"), ("b", "c"), ("a", "bc"), ("ab", "c")]


def test_a_folder_without_tokenizer_json_is_refused(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(UserError, match=r"has no tokenizer\.json; .*AutoTokenizer"):
        read_tokenizer(tmp_path, n_vocab=300, ends=[])


def test_an_added_token_of_spaces_is_spaces():
    """Gemma's tokenizer.json lists its runs of spaces among the added tokens."""
    made = of_sentence_piece()
    made.add_tokens([AddedToken("\u2581\u2581\u2581", normalized=False)])
    coder = LibraryTokenizer(made.to_str(), n_vocab=made.get_vocab_size(), end_of_text=None)
    ids = [made.token_to_id(token) for token in ("th", "\u2581\u2581\u2581", "e")]
    assert coder.decode(ids) == made.decode(ids) == "th   e"
    assert coder.byte_lengths()[ids].tolist() == [2, 3, 1]


def test_a_text_on_which_a_rule_runs_away_is_refused():
    made = of_sentence_piece()
    made.pre_tokenizer = pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated")
    coder = LibraryTokenizer(made.to_str(), n_vocab=made.get_vocab_size(), end_of_text=None)
    assert coder.encode("the") == made.encode("the", add_special_tokens=False).ids
    with pytest.raises(BaseException, match="retry-limit-in-match over"):
        made.encode("x" * 40)
    with pytest.raises(UserError, match=r"cannot encode text \(.*retry-limit-in-match over\)"):
        coder.encode("x" * 40)


@pytest.mark.parametrize(
    ("special", "named", "end"),
    [
        (["<s>", "</s>", "<end>"], {"eos_token": {"content": "<end>"}}, 2),
        (["<s>", "</s>"], None, 1),
        (["</s>", "<|endoftext|>"], {"eos_token": None}, 1),
        (["<s>"], None, None),
    ],
)
def test_a_published_tokenizer_needs_no_model(tmp_path, special, named, end):
    made = learned(WORDS, special=special)
    made.save(str(tmp_path / "tokenizer.json"))
    if named is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    read = OfModelSettings(path=str(tmp_path)).builder()([])
    assert read.to_dict() == load_tokenizer(tmp_path).to_dict()
    assert (read.n_vocab, read.end_of_text) == (made.get_vocab_size(), end)
    assert read.encode(WORDS) == made.encode(WORDS, add_special_tokens=False).ids


@pytest.mark.parametrize("adds_space", [False, True])
def test_a_file_of_gpt2s_published_form_is_a_tokenizer_of_gptmini(tmp_path, adds_space):
    letters = [bytes_to_letters(bytes([i])) for i in range(256)]
    tokens = [*letters, "\u0120t", "\u0120a", "\u0120th", "<|endoftext|>"]
    merges = [("\u0120", "t"), ("\u0120", "a"), ("\u0120t", "h")]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    made.save(str(tmp_path / "tokenizer.json"))

    read = read_tokenizer(tmp_path)
    assert isinstance(read, LibraryTokenizer) == adds_space
    for text in [WORDS, *random_texts(100, seed=1)]:
        assert read.encode(text) == made.encode(text).ids
