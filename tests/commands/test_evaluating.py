"""gptmini evaluate: text, conventions, intervals and comparison."""

import json
import math
import re

import pytest
import torch
from omegaconf import OmegaConf

import gptmini
from gptmini.model import packed


@pytest.fixture(autouse=True)
def stories(tmp_path):
    """Write documents as records into the working folder."""
    documents = [f"Story {i} tells of {'owl ' * (i % 7 + 1)}and rain.\n" for i in range(40)]
    lines = [json.dumps({"text": document}) for document in documents]
    (tmp_path / "stories.jsonl").write_text("\n".join(lines))


def evaluated(script, *arguments):
    result = script("evaluate", *arguments, "--json")
    assert result.code == 0, result
    return json.loads(result.out)


def test_each_document_alone_is_its_sum_of_nats_over_its_bytes(script, trained, tmp_path):
    """Each document fits into one window."""
    documents = [f"a {i}\né" for i in range(30)]
    lines = [json.dumps({"body": document}) for document in documents]
    (tmp_path / "short.jsonl").write_text("\n".join(lines))
    options = ("--text", "short.jsonl", "--field", "body", "--per-document")
    report = evaluated(script, "runs/latest", *options)

    model, tokenizer = gptmini.load("runs/latest")
    nats = 0.0
    for document in documents:
        ids = torch.tensor([tokenizer.end_of_text, *tokenizer.encode(document)])
        assert len(ids) <= model.config.context_length + 1
        with torch.no_grad():
            logits = model(ids[None, :-1])[0].double()
        nats -= float(logits.log_softmax(-1).gather(1, ids[1:, None]).sum())

    n_bytes = sum(len(document.encode()) for document in documents)
    (figures,) = report["models"]
    assert (figures["bytes"], figures["tokens"]) == (n_bytes, n_bytes)
    bits = nats / math.log(2) / n_bytes
    assert figures["bits_per_byte"]["value"] == pytest.approx(bits, rel=1e-5)
    assert report["intervals"] | {"parts": 30, "part": "documents"} == report["intervals"]
    low, high = figures["loss"]["interval"]
    assert low < figures["loss"]["value"] < high


def test_text_and_its_prepared_folder_give_the_same_figures(script, trained, tmp_path):
    texts = ("data=text", "data.path=my.txt", "data.val_path=stories.jsonl")
    result = script("prepare", *texts, "init_from=runs/latest")
    folder = result.out.partition(",")[0]
    limited = ["--per-document", "--max-tokens", "99"]
    for options in ([], ["--per-document"], ["--max-tokens", "99"], limited):
        by_text = evaluated(script, "runs/latest", "--text", "stories.jsonl", *options)
        prepared = evaluated(script, "runs/latest", "--data", folder, *options)
        assert prepared["models"] == by_text["models"]
        if not options:
            records = map(json.loads, (tmp_path / "stories.jsonl").read_text().splitlines())
            n_bytes = sum(len(record["text"]) for record in records)
            assert by_text["models"][0]["bytes"] == n_bytes - 1  # the first byte is not predicted


def test_a_run_and_its_evaluation_agree_to_the_last_digit(script, trained):
    """Validation reads the same windows. The figures in the JSON object obey the formula in docs/evaluating.md."""
    lines = (trained / "metrics.jsonl").read_text().splitlines()
    validations = [line for line in map(json.loads, lines) if "val/loss" in line]
    best = min(validations, key=lambda line: line["val/loss"])

    n_tokens = OmegaConf.load(trained / "config.yaml").trainer.val_tokens
    (figures,) = evaluated(script, "runs/latest", "--max-tokens", str(n_tokens))["models"]
    assert figures["loss"]["value"] == best["val/loss"]
    assert figures["bits_per_byte"]["value"] == best["val/bits_per_byte"]
    bits = figures["loss"]["value"] / math.log(2) * figures["tokens_per_byte"]
    assert figures["bits_per_byte"]["value"] == pytest.approx(bits, rel=1e-12)


def test_the_price_of_fewer_bits_is_measured(script, trained, monkeypatch):
    monkeypatch.setattr(packed, "LARGE", 0)
    exact = evaluated(script, "runs/latest")
    assert evaluated(script, "runs/latest", "--dtype", "fp32") == exact
    bits = {
        dtype: evaluated(script, "runs/latest", "--dtype", dtype)["models"][0]["loss"]["value"]
        for dtype in ("bf16", "int8")
    }
    loss = exact["models"][0]["loss"]["value"]
    assert len({loss, *bits.values()}) == 3
    assert list(bits.values()) == pytest.approx([loss, loss], rel=0.01)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_weights_that_are_nan_are_no_figures(script, trained, options):
    contents = torch.load(trained / "checkpoints" / "best.ckpt", weights_only=True)
    for weight in contents["state_dict"].values():
        weight.fill_(math.nan)
    torch.save(contents, "nan.ckpt")
    result = script("evaluate", "nan.ckpt", "--text", "stories.jsonl", *options)
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1), result
    assert "nan.ckpt" in result.err


def test_models_of_other_tokenizers_are_compared_by_document(script, trained, tmp_path, short):
    pairs = ("tokenizer=bpe", "tokenizer.vocab_size=270", "name=pairs")
    assert script("train", *short, *pairs).code == 0
    report = evaluated(script, "--compare", "runs/smoke", "runs/pairs", "--text", "stories.jsonl")
    first, second = (figures["bits_per_byte"]["value"] for figures in report["models"])
    assert report["comparison"]["bits_per_byte"] == pytest.approx(second - first)
    assert [figures["bytes"] for figures in report["models"]] == [report["models"][0]["bytes"]] * 2
    assert report["models"][0]["tokens"] > report["models"][1]["tokens"]
    assert "each document alone" in report["models"][1]["convention"]

    swapped = evaluated(script, "--compare", "runs/pairs", "runs/smoke", "--text", "stories.jsonl")
    low, high = report["comparison"]["interval"]
    assert swapped["comparison"]["interval"] == pytest.approx([-high, -low], abs=1e-12)
    won = report["comparison"]["share_won_by_first"]
    assert swapped["comparison"]["share_won_by_first"] == pytest.approx(1 - won)

    # The first model's tokens decide how many documents are compared.
    limited = ("--text", "stories.jsonl", "--max-tokens", "99")
    report = evaluated(script, "--compare", "runs/smoke", "runs/pairs", *limited)
    first, second = (figures["bytes"] for figures in report["models"])
    assert first == second >= 99
    assert report["intervals"]["parts"] < 40


def test_two_runs_of_one_tokenizer_are_compared_in_one_stream(script, trained, short):
    script("train", *short, "seed=7", "name=other")
    both = ("--compare", "runs/smoke", "runs/other", "--text", "stories.jsonl")
    report = evaluated(script, *both)
    first, second = (figures["bits_per_byte"]["value"] for figures in report["models"])
    low, high = report["comparison"]["interval"]
    assert low < second - first < high

    # The held-out text has blocks of 512 and 305 bytes: 817² / (512² + 305²) = 1.9.
    result = script("evaluate", "--compare", "runs/smoke", "runs/smoke")
    assert re.search(r"^second - first +\+0\.0000 bits per byte$", result.out, re.MULTILINE), result
    assert re.search(r"^no interval .* 1\.9 ", result.out, re.MULTILINE), result
    assert "[" not in result.out


def test_a_vocabulary_without_an_end_of_text_cannot_stand_before_documents(script, short, trained):
    script("train", *short, "tokenizer=char", "name=letters")
    for options in (["--per-document"], ["--compare", "runs/smoke"]):
        result = script("evaluate", *options, "runs/letters", "--text", "stories.jsonl")
        result.assert_refused("runs/letters/", "end-of-text")


def test_the_sources_of_a_mixture_are_measured_by_document(script, trained, tmp_path):
    sources = "data.sources={a: {path: stories.jsonl, weight: 1}, b: {path: my.txt, weight: 1}}"
    result = script("prepare", "data=mixture", sources, "init_from=runs/latest")
    assert result.code == 0, result
    report = evaluated(script, "runs/latest", "--data", result.out.partition(",")[0])
    assert "documents" in report["intervals"]["part"]
    alone = script(
        "evaluate", "runs/latest", "--data", result.out.partition(",")[0], "--per-document"
    )
    assert "--per-document" in alone.err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        # The name contains a key, or the characters that separate a message from its remedy.
        ("my; text.txt", None, ["--text ", "got my; text.txt"]),
        ("data.path.txt", None, ["--text ", "got data.path.txt"]),
        ("a; b.pdf", "x", ["--text ", "got a; b.pdf; ", ".txt"]),
        (
            "a; b.jsonl",
            '{"body": 1}',
            ["a; b.jsonl, line 1", "'text'", "--field", "body"],
        ),
        # Remedies that name keys of training are left out.
        ("a; b.txt", "caf\xe9", ["a; b.txt is not valid UTF-8", "0xe9"]),
    ],
)
def test_a_text_that_cannot_be_read_is_named_whole(script, trained, tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    result = script("evaluate", "runs/latest", "--text", name)
    result.assert_refused(*said)
    assert "data." not in result.err.replace(name, "")
