"""The built-in template lets every tokenizer encode chats, and its ids decode to the chat's text."""

import json

import pytest

from gptmini.data import TextCorpus, prepare
from gptmini.system.errors import UserError
from gptmini.tokenizer import (
    CharTokenizer,
    bpe,
    byte,
    character,
    chat_encoder_of,
    from_dict,
    gpt2,
    plain_text,
    with_chat_template,
)
from gptmini.tokenizer.tokenizer import Document

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is the hat, Zoë?"},
    {"role": "assistant", "content": "In the\ngarden."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Ünknown."},
]
TEXT = (
    "Be brief.\n"
    "User: Where is the hat, Zoë?\n"
    "Assistant: In the\ngarden.<|endoftext|>\n"
    "User: Why?\n"
    "Assistant: Ünknown.<|endoftext|>\n"
)
DOCUMENTS = [Document("train", TEXT.replace("<|endoftext|>", ""))] * 2


@pytest.fixture(
    params=[
        lambda: byte([]),
        lambda: character(DOCUMENTS),
        lambda: bpe(DOCUMENTS, vocab_size=280),
        lambda: gpt2([]),
    ],
    ids=["byte", "char", "bpe", "gpt2"],
)
def tokenizer(request):
    try:
        plain = request.param()
    except UserError:
        pytest.skip("needs tiktoken's files of GPT-2")
    # As a checkpoint stores it.
    return from_dict(json.loads(json.dumps(with_chat_template(plain).to_dict())))


def test_a_chat_is_lines_and_each_answer_ends_with_end_of_text(tokenizer):
    ids, is_answer = chat_encoder_of(tokenizer).encode(CHAT)
    assert tokenizer.decode(ids) == TEXT
    assert ids.tolist().count(tokenizer.end_of_text) == 2
    answers = tokenizer.decode(ids[is_answer])
    assert answers == " In the\ngarden.<|endoftext|> Ünknown.<|endoftext|>"
    assert plain_text(CHAT) == TEXT.replace("<|endoftext|>", "")


@pytest.mark.parametrize("n_messages", [2, 4])
def test_the_prompt_of_an_answer_starts_the_chat_with_the_answer(tokenizer, n_messages):
    ids, _ = chat_encoder_of(tokenizer).encode(CHAT)
    prompt = chat_encoder_of(tokenizer).prompt(CHAT[:n_messages])
    assert ids[: len(prompt)].tolist() == prompt
    assert tokenizer.decode(prompt).endswith("\nAssistant:")


def test_the_string_of_end_of_text_in_a_message_is_text():
    tokenizer = with_chat_template(byte([]))
    ids, _ = chat_encoder_of(tokenizer).encode([{"role": "user", "content": "<|endoftext|>"}])
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == "User: <|endoftext|>\n"


def test_a_tokenizer_without_end_of_text_cannot_end_an_answer():
    with pytest.raises(UserError, match="end-of-text"):
        with_chat_template(CharTokenizer("abc", end_of_text=False))


def test_chats_are_prepared_with_the_template_and_the_characters_that_it_adds(tmp_path):
    chats = [
        [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i}!"}]
        for i in range(40)
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats))
    corpus = TextCorpus(path, 0.2, template="chat", loss_on="answers")
    store, _ = prepare(corpus, character, tmp_path / "data")

    tokenizer = store.tokenizer
    assert set("User: Assistant") < set(tokenizer.characters)
    assert tokenizer.chat_template == from_dict(tokenizer.to_dict()).chat_template is not None
    ids = store.tokens("train")[: store.document_ends("train")[0]]
    counted = ids[ids >= 0].tolist()
    text = tokenizer.decode([i if i >= 0 else ~i for i in ids.tolist()])
    assert text.startswith("User: ")
    assert tokenizer.decode(counted) == f" {text[6:].partition('?')[0]}!<|endoftext|>"


def test_transformers_reads_the_template_of_an_export_and_encodes_the_same_ids(tmp_path):
    transformers = pytest.importorskip("transformers")
    from gptmini.interop.tokenizer_writing import write_tokenizer

    tokenizer = with_chat_template(bpe(DOCUMENTS, vocab_size=280))
    write_tokenizer(tokenizer, tmp_path, context_length=64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids, _ = chat_encoder_of(tokenizer).encode(CHAT)
    assert theirs.apply_chat_template(CHAT, return_dict=False) == ids.tolist()
    # A client returns an answer as the program gave it. gptmini removes the space before it, and others do not.
    spaced = [m | {"content": f" {m['content']}"} if m["role"] == "assistant" else m for m in CHAT]
    assert theirs.apply_chat_template(spaced, return_dict=False) == ids.tolist()
    prompt = theirs.apply_chat_template(CHAT[:2], add_generation_prompt=True, return_dict=False)
    assert prompt == chat_encoder_of(tokenizer).prompt(CHAT[:2])
