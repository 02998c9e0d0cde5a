"""Token files, Hub datasets and mixtures, from the command line to the weights."""

import re

import numpy as np


def test_token_files_train_as_the_text_that_they_encode(script, short, tmp_path):
    text = (tmp_path / "my.txt").read_text()
    ids = [*text.encode(), 256]
    n_train = text.rindex("\n", 0, int(len(text) * 0.9)) + 1
    np.array([*ids[:n_train], 256], dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.array(ids[n_train:], dtype=np.uint16).tofile(tmp_path / "val.bin")

    of_text = script("train", *short, "data.val_fraction=0.1", "tokenizer=byte")
    overrides = [line for line in short if not line.startswith("data")]
    files = ("data=tokens", "data.path=train.bin", "data.val_path=val.bin", "tokenizer=byte")
    of_files = script("train", *overrides, *files)
    assert of_files.code == 0, of_files.err

    def losses(result):
        return re.findall(r"loss (\d+\.\d+)", result.out)

    assert losses(of_files) == losses(of_text) != []


def test_a_mixture_is_trained_on_and_its_passes_are_told(script, short, tmp_path):
    text = (tmp_path / "my.txt").read_text()
    (tmp_path / "other.txt").write_text(text[: len(text) // 20].upper())
    overrides = [line for line in short if not line.startswith("data")]
    sources = "data.sources={a: {path: my.txt, weight: 3}, b: {path: other.txt, weight: 1}}"
    steps = (
        "trainer.max_steps=199",
        "trainer.val_tokens=200",
        "trainer.val_every_steps=150",
        "callbacks.scalars.every_steps=100",
        "callbacks.checkpoints.every_steps=150",
    )
    result = script("train", *overrides, "data=mixture", sources, *steps)
    assert result.code == 0, result.err
    assert re.search(r"^ +a: 3 of 4 windows, [\d,]+ tokens, \S+ passes$", result.out, re.MULTILINE)

    tokenizer = [line for line in short if line.startswith("tokenizer")]
    inspected = script("prepare", "data=mixture", sources, *tokenizer, "inspect=true")
    assert re.search(r"^ +3  a, [\d,]+ tokens\n +1  b, [\d,]+ tokens$", inspected.out, re.MULTILINE)

    resumed = script("train", "resume=runs/latest", "trainer.max_steps=201")
    assert resumed.code == 0, resumed.err

    # An evaluation reads the same part of each source as the run's validation.
    best = re.search(r"^best +val loss (\d+\.\d+), ", resumed.out, re.MULTILINE)[1]
    evaluated = script("evaluate", "runs/latest", "--max-tokens", "200")
    assert re.search(r"^loss +(\d+\.\d+) ", evaluated.out, re.MULTILINE)[1] == best
