"""Chats with the template of a folder: ids, answers and losses are the same as in transformers."""

import gzip
import json
import os
import re

import numpy as np
import pytest
import torch

import gptmini
from gptmini.console.progress import Watcher
from gptmini.data import TextCorpus, prepare
from gptmini.data.prepared import preparation
from gptmini.data.prepared.batches import split_windows
from gptmini.data.prepared.ids import without_marks
from gptmini.interop.tokenizer_reading import read_tokenizer
from gptmini.interop.tokenizer_writing import write_tokenizer
from gptmini.model import training_loss
from gptmini.system.errors import UserError
from gptmini.tokenizer import chat_encoder_of, from_dict
from interop.library_tokenizers import learned
from toys import from_hugging_face

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

CHATML = """{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'assistant' %}
<|im_start|>assistant
{% generation %}
{{ message['content'] }}<|im_end|>
{% endgeneration %}
{% else %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""
PLAIN = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
CHAT = [
    {"role": "system", "content": "  Be brief. "},
    {"role": "user", "content": "Where is the cat?\n\nOn 12 mats?"},
    {"role": "assistant", "content": "On the mat, naïvely 🙂."},
    {"role": "user", "content": "And the other cats"},
    {"role": "assistant", "content": " Nowhere\n"},
]
WORDS = "the cat sat on 12 mats, where is it? system user assistant Be brief. And nowhere"


def folder_with(path, template, *, as_file=False):
    """Write a folder with a chat template and a tokenizer.json that adds <s> before a text."""
    made = learned(WORDS, special=["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    path.mkdir(exist_ok=True)
    made.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>"},
    }
    if as_file:
        (path / "chat_template.jinja").write_text(template)
    elif template is not None:
        config["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def read(path):
    return read_tokenizer(path, n_vocab=300, ends=[1])


@pytest.mark.parametrize("as_file", [True, False])
def test_ids_and_answers_are_those_of_transformers(tmp_path, as_file):
    path = folder_with(tmp_path / "theirs", CHATML, as_file=as_file)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    expected = theirs.apply_chat_template(CHAT, return_dict=True, return_assistant_tokens_mask=True)
    tokenizer = from_dict(read(path).to_dict())
    ids, is_answer = chat_encoder_of(tokenizer).encode(CHAT)
    assert ids.tolist() == expected["input_ids"]
    assert is_answer.tolist() == [bool(i) for i in expected["assistant_masks"]]

    # The template of a file replaces an older one in tokenizer_config.json, as in transformers.
    published = {"chat_template": PLAIN, "bos_token": "<s>"} if as_file else None
    (tmp_path / "out").mkdir()
    write_tokenizer(tokenizer, tmp_path / "out", context_length=64, published=published)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again.apply_chat_template(CHAT)["input_ids"] == expected["input_ids"]
    assert again.bos_token == "<s>"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", ": roles must alternate"),
        ("{% if %}", "template .* Jinja: Expected an expression"),
        ("{{ messages.__class__.__mro__ }}", ": access to attribute '__class__'"),
    ],
)
def test_a_template_that_cannot_be_used_is_told(tmp_path, template, said):
    tokenizer = read(folder_with(tmp_path, template))
    with pytest.raises(UserError, match=said):
        chat_encoder_of(tokenizer).encode(CHAT)


@pytest.fixture
def chats(tmp_path):
    """A file of 300 chats of different lengths, and the chats."""
    made = [[CHAT[1] | {"content": f"cat {i} " * (i % 7)}, CHAT[2]] for i in range(300)]
    lines = [json.dumps({"id": i, "messages": chat}) for i, chat in enumerate(made)]
    (tmp_path / "chats.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path / "chats.jsonl.gz", made


def prepared(tmp_path, file, tokenizer, **how):
    """Prepare chats. If each can be trained on, nothing is told of them."""
    corpus = TextCorpus(file, 0.2, template="chat", **how)
    notes = []
    watcher = Watcher(on_note=notes.append)
    store, _ = prepare(corpus, lambda documents: tokenizer, tmp_path / "data", watcher=watcher)
    assert notes == []
    return store


def test_a_store_of_chats_marks_what_the_loss_does_not_count(tmp_path, chats):
    file, made = chats
    path = folder_with(tmp_path / "theirs", CHATML)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    store = prepared(tmp_path, file, read(path), loss_on="answers")
    whole = prepared(tmp_path, file, read(path))
    assert whole.tokens("val").dtype == np.uint16
    assert whole.counted_share == 1

    expected = {}
    for chat in made:
        one = theirs.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        labels = np.where(one["assistant_masks"], one["input_ids"], -100)
        expected[(*one["input_ids"], 1)] = [*labels.tolist(), -100]  # 1 is end-of-text

    for split in ("train", "val"):
        ids = store.tokens(split)
        assert without_marks(ids).tolist() == whole.tokens(split).tolist()
        for document in np.split(ids, store.document_ends(split).astype(int)[:-1]):
            labels = expected[tuple(without_marks(document).tolist())]
            assert np.where(document < 0, -100, document).tolist() == labels

        answers = ids[ids >= 0]
        n_bytes = len(theirs.decode(answers).encode())
        assert store.tokens_per_byte(split) == pytest.approx(len(answers) / n_bytes)
    ids = store.tokens("train")
    assert store.counted_share == (ids >= 0).sum() / len(ids)


@pytest.mark.slow
def test_the_loss_is_that_of_transformers_with_labels(tmp_path, chats, monkeypatch):
    file, _ = chats
    path = folder_with(tmp_path / "theirs", CHATML)
    store = prepared(tmp_path, file, read(path), loss_on="answers")
    tokens, targets = next(gptmini.batches(store, batch_size=4, context_length=40, seed=1))
    assert tokens.min() >= 0
    assert (targets == -100).any()

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.3,
    )
    theirs = transformers.LlamaForCausalLM(config)
    ours = from_hugging_face(config.to_dict(), theirs.state_dict())
    # transformers takes windows with all tokens and shifts the labels itself.
    inputs = torch.cat([tokens, tokens[:, -1:]], dim=1)
    labels = torch.cat([torch.full((4, 1), -100), targets], dim=1)
    expected = theirs(inputs, labels=labels).loss
    expected.backward()
    wanted = theirs.model.layers[0].mlp.up_proj.weight.grad

    share = (targets != -100).double().mean().item()  # of this batch
    for logits_at_once in (2**24, 300 * 7):
        monkeypatch.setattr("gptmini.model.loss.LOGITS_AT_ONCE_ON_CPU", logits_at_once)
        ours.zero_grad()
        loss = training_loss(ours, tokens, targets, counted_share=share)
        loss.backward()
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(ours.blocks[0].mlp.input.weight.grad, wanted)

    nothing, _ = split_windows(np.full((2, 9), -5))
    loss = training_loss(ours, nothing, torch.full((2, 8), -100), counted_share=share)
    assert loss == 0


STRICT_PLAIN = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}</s>{% endfor %}"
)


def test_a_chat_that_the_template_refuses_is_named_or_left_out_and_counted(tmp_path, monkeypatch):
    made = []
    for i in range(300):
        chat = [CHAT[1] | {"content": f"cat {i} " + "sat " * (i % 7)}, CHAT[2]]
        made.append(chat[::-1] if i % 10 == 5 else chat)  # the template wants the user first
    file = tmp_path / "some.jsonl"
    file.write_text("\n".join(json.dumps({"messages": chat}) for chat in made))
    path = folder_with(tmp_path / "theirs", STRICT_PLAIN)
    tokenizer = read(path)
    where = r"some\.jsonl, line 6 \(byte [\d,]+\): .*: roles must alternate; .*data\.on_error"
    with pytest.raises(UserError, match=where):
        prepared(tmp_path, file, tokenizer)

    encode = preparation.encode_task

    def interrupted(task, *others):
        if task.number == 5:
            raise KeyboardInterrupt
        encode(task, *others)

    notes = []

    def start():
        corpus = TextCorpus(file, 0.2, template="chat", on_error="skip")
        watcher = Watcher(on_note=notes.append)
        return prepare(corpus, lambda documents: tokenizer, tmp_path / "skip", watcher=watcher)[0]

    monkeypatch.setattr("gptmini.data.prepared.tasks.TASK", 3000)
    with monkeypatch.context() as patch:
        patch.setattr("gptmini.data.prepared.preparation.encode_task", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start()
    store = start()
    (note,) = [note for note in notes if "by the template" in note]
    assert re.match(r"30 chats .* first error: .*some\.jsonl, line 6 .*roles must alternate$", note)
    listed = (store.folder / "skipped.txt").read_text()
    assert [int(n) for n in re.findall(r"line (\d+)", listed)] == [*range(6, 301, 10)]

    theirs = transformers.AutoTokenizer.from_pretrained(path)
    kept = [chat for chat in made if chat[0]["role"] == "user"]
    expected = sorted([*theirs.apply_chat_template(chat)["input_ids"], 1] for chat in kept)
    documents = []
    for split in ("train", "val"):
        ends = store.document_ends(split).astype(int)[:-1]
        documents += [part.tolist() for part in np.split(store.tokens(split), ends)]
    assert sorted(documents) == expected


def test_roles_that_occur_are_named_where_no_answer_is_trained_on(tmp_path):
    tokenizer = read(folder_with(tmp_path / "theirs", PLAIN))
    chats = [
        [{"role": "human", "content": f"cat {i}"}, {"role": "gpt", "content": "the mat"}]
        for i in range(100)
    ]
    file = tmp_path / "roles.jsonl"
    file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    with pytest.raises(
        UserError, match=r"loss_on=answers .* role 'assistant'.* train .* roles gpt, human;"
    ):
        prepared(tmp_path, file, tokenizer, loss_on="answers")
    assert prepared(tmp_path, file, tokenizer).n_documents("train") > 50
