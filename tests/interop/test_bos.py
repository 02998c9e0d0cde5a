"""The ids before a text, in evaluations and in prepared texts, are the same as in transformers."""

import hashlib
import json
import math
import os

import numpy as np
import pytest
import torch
from tokenizers import processors

from gptmini.data import TextCorpus, TokenFiles, prepare
from gptmini.data.prepared import tasks
from gptmini.data.prepared.inspect import inspect_split
from gptmini.data.reading import cutting
from gptmini.evaluation.held_out import PreparedText, TextFiles
from gptmini.evaluation.measurement import TrainedModel, measure
from gptmini.generation import prompt_ids
from gptmini.loading import builder_of, load
from gptmini.tokenizer import from_dict
from interop.library_tokenizers import learned

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

CONTEXT = 16
SPECIAL = ["<s>", "</s>", "<b>"]
WORDS = "the cat sat on 12 mats, where is it? Nowhere and nowhere, naïve 🙂. "
TEXTS = [WORDS[:5], WORDS[3:] * 2, "\n it is\n", WORDS, "on mats " * 9]
TEMPLATE = "{% for message in messages %}{{ bos_token }}{{ message.content }}{% endfor %}"
# Kinds of folders: whether tokenizer.json adds <s> before a text, and the other names of tokenizer_config.json.
KINDS = {
    "adds <s>": (True, {"bos_token": "<s>"}),
    "names another token": (False, {"bos_token": {"__type": "AddedToken", "content": "<b>"}}),
    "has a template": (False, {"bos_token": "<b>", "chat_template": TEMPLATE}),
    "names none": (False, {}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of a random Llama of transformers for each kind."""
    made = {}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        initializer_range=0.5,
        eos_token_id=1,
    )
    theirs = transformers.LlamaForCausalLM(config)
    for kind, (adds, names) in KINDS.items():
        folder = made[kind] = tmp_path_factory.mktemp("llama")
        theirs.save_pretrained(folder)
        tokenizer = learned(WORDS, special=SPECIAL)
        if not adds:
            tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"} | names
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return made


@pytest.fixture(params=KINDS)
def folder(request, folders):
    """The folder of a kind."""
    return folders[request.param]


@pytest.fixture
def file(tmp_path):
    """A file of the documents."""
    lines = [json.dumps({"text": text}) for text in TEXTS]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    return tmp_path / "texts.jsonl"


def read(folder):
    """Return a folder's tokenizer, as restored from a checkpoint."""
    _, tokenizer = load(folder)
    return from_dict(tokenizer.to_dict())


def coder_of(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


def nats_of(theirs, window, n_scored):
    """Return the loss of transformers' model, in nats, on the last ids of a window."""
    labels = torch.tensor([window])
    labels[:, :-n_scored] = -100
    with torch.no_grad():
        return float(theirs(torch.tensor([window]), labels=labels).loss) * n_scored


def measured(folder, text, *, per_document):
    model, tokenizer = load(folder)
    trained = TrainedModel(folder, model, from_dict(tokenizer.to_dict()))
    return measure(
        trained,
        text,
        per_document=per_document,
        batch_size=3,
        on_batch=lambda *n: None,
    )


def test_a_document_alone_stands_behind_the_token_of_lm_evaluation_harness(folder, file):
    """In its models/huggingface.py, prefix_token_id is bos_token_id or else eos_token_id; the windows are the same."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    coder = coder_of(folder)
    first = coder.eos_token_id if coder.bos_token_id is None else coder.bos_token_id

    nats = 0.0
    for text in TEXTS:
        ids = coder(text, add_special_tokens=False)["input_ids"]
        given = [first, *ids]
        for start in range(0, len(ids), CONTEXT):
            end = min(start + CONTEXT, len(ids))
            nats += nats_of(theirs, given[max(0, end - CONTEXT) : end + 1], end - start)

    found = measured(folder, TextFiles([file], "text", None), per_document=True)
    n_bytes = sum(len(text.encode()) for text in TEXTS)
    bits = nats / math.log(2) / n_bytes
    assert found.evaluation.bits_per_byte == pytest.approx(bits, rel=1e-5)
    assert found.n_bytes == n_bytes
    assert found.convention.startswith(f"each document alone after {coder.decode([first])}, ")


def test_a_stream_is_that_of_hugging_face(folder, file):
    """The ids of coder(text) and end-of-text follow each other."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    coder = coder_of(folder)
    ids = [i for text in TEXTS for i in (*coder(text)["input_ids"], coder.eos_token_id)]

    nats = 0.0
    for start in range(0, len(ids) - 1, CONTEXT):
        window = ids[start : start + CONTEXT + 1]
        nats += nats_of(theirs, window, len(window) - 1)

    found = measured(folder, TextFiles([file], "text", None), per_document=False)
    assert found.evaluation.n_tokens == len(ids) - 1
    assert found.evaluation.loss == pytest.approx(nats / (len(ids) - 1), rel=1e-5)
    n_bytes = sum(len(text.encode()) for text in TEXTS)
    assert found.tokens_per_byte == pytest.approx(len(ids) / n_bytes)
    _, *others = found.sums.n_bytes.tolist()
    assert others == [len(text.encode()) for text in TEXTS[1:]]


def test_a_prepared_document_begins_as_in_transformers_and_as_a_prompt(folder, file, tmp_path):
    coder = coder_of(folder)
    tokenizer = read(folder)
    (tmp_path / "val.txt").write_text(WORDS)
    corpus = TextCorpus([file], 0.5, val_path=tmp_path / "val.txt")
    store, _ = prepare(corpus, builder_of(tokenizer), tmp_path / "data")

    expected = [[*coder(text)["input_ids"], coder.eos_token_id] for text in TEXTS]
    assert in_documents(store, "train") == expected
    prompts = [prompt_ids(tokenizer, text) for text in TEXTS]
    assert prompts == [ids[:-1] for ids in expected]

    n_bytes = sum(len(text.encode()) for text in TEXTS)
    assert store.n_bytes("train") == n_bytes
    assert tokenizer.byte_lengths()[store.tokens("train")].sum() == n_bytes
    assert inspect_split(store, "train", 99).first == TEXTS[:3]

    # The text gives the same ids without preparation.
    prepared = PreparedText(store.folder, "train", None)
    text = TextFiles([file], "text", None)
    for given in (prepared, text):
        documents, lengths = given.documents(tokenizer)
        assert [ids.tolist() for ids in documents] == [tokenizer.encode(one) for one in TEXTS]
        assert lengths.tolist() == [len(one.encode()) for one in TEXTS]
    (of_store,) = prepared.excerpts(tokenizer)
    (of_text,) = text.excerpts(tokenizer)
    assert of_store.ids.tolist() == of_text.ids.tolist()


def in_documents(store, split):
    """Return the ids of each document of a split."""
    ends = store.document_ends(split).astype(int)
    return [ids.tolist() for ids in np.split(store.tokens(split), ends[:-1])]


@pytest.mark.parametrize("most_parts", [1, 2**17])
def test_a_document_in_parts_that_is_cut_for_validation_begins_once_in_both_splits(
    folders, tmp_path, monkeypatch, most_parts
):
    monkeypatch.setattr(cutting, "PART", 100)
    monkeypatch.setattr(tasks, "MOST_PARTS", most_parts)
    tokenizer = read(folders["adds <s>"])
    (tmp_path / "one.txt").write_text((WORDS + "\n") * 40)
    corpus = TextCorpus(tmp_path / "one.txt", 0.1)
    store, _ = prepare(corpus, builder_of(tokenizer), tmp_path / "data")
    for split in ("train", "val"):
        ids = store.tokens(split).tolist()
        assert (ids[0], ids[-1], ids.count(0), ids.count(1)) == (0, 1, 1, 1)


def test_a_chat_has_no_second_beginning(folders, tmp_path):
    """The template writes <b> before each message."""
    folder = folders["has a template"]
    coder = coder_of(folder)
    chats = [[{"role": "user", "content": text}] for text in TEXTS]
    lines = [json.dumps({"messages": chat}) for chat in chats]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    tokenizer = read(folder)
    corpus = TextCorpus([tmp_path / "chats.jsonl"], 0.5, template="chat")
    store, _ = prepare(corpus, builder_of(tokenizer), tmp_path / "data")

    expected = {tuple(coder.apply_chat_template(chat)["input_ids"]) for chat in chats}
    found = []
    for split in ("train", "val"):
        assert all((*ids[:-1],) in expected for ids in in_documents(store, split))
        found += PreparedText(store.folder, split, None).documents(tokenizer)[0]
    assert {(2, *ids.tolist()) for ids in found} == expected


@pytest.mark.parametrize("kind", KINDS)
def test_fingerprints_change_only_with_the_beginning_of_a_text(folders, kind):
    """The digest equals that of earlier versions, which had bos_token only with a template."""
    tokenizer = read(folders[kind])
    state = {
        "kind": "tokenizers",
        "json": (folders[kind] / "tokenizer.json").read_text(encoding="utf-8"),
        "n_vocab": 300,
        "end_of_text": 1,
        "more_ends": [],
    }
    if kind == "has a template":
        state["chat"] = {"chat_template": TEMPLATE, "bos_token": "<b>", "eos_token": "</s>"}
    if kind == "names another token":
        state["bos_token"] = "<b>"  # precedes a document that is scored alone
    digest = hashlib.sha256(repr(sorted(state.items())).encode()).hexdigest()

    before = {"before": [0]} if kind == "adds <s>" else {}
    assert builder_of(tokenizer).keywords == {"sha256": digest} | before
    assert tokenizer.to_dict() == state


def test_token_files_stay_as_they_are_and_their_beginnings_are_no_text(folders, tmp_path):
    tokenizer = read(folders["adds <s>"])
    ids = [0, *tokenizer.encode(WORDS), 1] * 20
    np.array(ids, dtype="<u2").tofile(tmp_path / "train.bin")
    corpus = TokenFiles(tmp_path / "train.bin", None, 0.5)
    store, _ = prepare(corpus, builder_of(tokenizer), tmp_path / "data")
    assert [*store.tokens("train")[:], *store.tokens("val")[:]] == ids
    n_bytes = store.n_bytes("train") + store.n_bytes("val")
    assert n_bytes == 20 * len(WORDS.encode())
    assert inspect_split(store, "train", 999).first[0] == WORDS
