"""Console output of runs and preparations."""

import re
import shlex

import pytest

from gptmini.commands.options import parse_options
from gptmini.commands.sample import OPTIONS


def test_a_run_says_what_it_trains_and_what_came_of_it_line_by_line(script, short):
    result = script("train", *short)
    run = re.search(r"^run +(\S+)$", result.out, re.MULTILINE)[1]
    topics = [line[:8].strip() for line in result.out.splitlines() if line[:1].strip()]
    assert topics == [
        *("auto", "data", "model", "machine", "run", "step 1/4", "step 2/4", "step 4/4"),
        *("done", "losses", "best", "sample", "copied", "next", "more"),
    ]
    watch = "         watch it: tensorboard --logdir runs\n"
    assert f"{watch}         then open http://localhost:6006/#custom_scalars\n" in result.out
    # Four steps of four sequences of eight tokens.
    n_tokens = int(re.search(r"^ +([\d,]+) training tokens", result.out, re.M)[1].replace(",", ""))
    passes = float(re.search(r"^ +(\S+) passes over the text$", result.out, re.M)[1])
    assert passes == pytest.approx(4 * 4 * 8 / n_tokens, rel=0.05)
    sample, evaluate, report, _ = result.out.splitlines()[-4:]
    assert sample.startswith(f"next     gptmini sample {run} --prompt ")
    assert evaluate == f"         gptmini evaluate {run}"
    assert report == f"         gptmini report {run}"


@pytest.mark.parametrize(
    ("held_out", "prompt"),
    [
        ("\n\n- 'Say' \"it\"\n\x1b[31mMany words are in this line.\n", "31mMany words are in this"),
        ("ACGT\nTTGA\n" * 9, "ACGT"),
        ("\u4e2d" * 64, "\u4e2d" * 40),
    ],
)
def test_the_suggested_prompt_is_the_start_of_the_held_out_text(
    script, short, tmp_path, held_out, prompt
):
    (tmp_path / "val.txt").write_text(held_out)
    overrides = ("data.val_path=val.txt", "tokenizer=byte", "trainer.max_steps=1")
    result = script("train", *short, *overrides)
    (line,) = re.findall(r"^next     gptmini sample (.*)$", result.out, re.MULTILINE)
    arguments = shlex.split(line)
    options = parse_options("sample", "", OPTIONS, arguments)
    assert options.prompt[0] in prompt

    result = script("sample", *arguments, "--max-new-tokens=4")
    assert result.code == 0, result
    assert result.out.startswith(prompt[:10])


def test_without_events_tensorboard_is_not_named_but_a_report_is(script, short):
    result = script("train", *short, "logger=none")
    assert result.code == 0, result.err
    assert "tensorboard" not in result.out
    assert "gptmini sample" in result.out
    assert "gptmini report" in result.out


def test_a_time_limit_makes_the_number_of_passes_a_maximum(script, short):
    limited = script("train", *short, "trainer.max_time=1e-3")
    assert re.search(r"^ +at most [\d.,]+ passes over the text$", limited.out, re.MULTILINE)


def test_a_tokenizer_that_learned_fewer_ids_than_asked_for_says_so(script, short):
    result = script("train", *short, "tokenizer=bpe", "tokenizer.vocab_size=4096")
    assert re.search(
        r"^data     the vocabulary has .*\d+ .*tokenizer\.vocab_size=4096", result.out, re.MULTILINE
    )


# Overrides besides the sizes, and the default name of the run.
NAMES = [
    (["experiment=smoke", "data=text", "data.path=my.txt"], "smoke"),
    ([], "pydoc"),
    (["data=text", "data.path=my.txt"], "my"),
    (["data=text", "data.path=my.tar.gz"], "text"),
    (["data=text", "data.path=[my.txt]"], "text"),
    (["data=text", "data.path=m*.txt"], "text"),
    (["data=text", "data.path=-"], "text"),
    (["data=hub", "data.dataset=roneneldan/TinyStories"], "TinyStories"),
    (["data=mixture", "data.sources={a: {path: my.txt, weight: 1}}"], "mixture"),
    (["data=text", "data.path=my.txt", "name=mine"], "mine"),
    # A run may not have these names.
    (["latest.txt"], "text"),
    (["a\\b.txt"], "a-b"),
    (["data=hub", "data.dataset=.."], "text"),
]


@pytest.mark.parametrize(("overrides", "name"), NAMES)
def test_a_run_is_named_by_its_experiment_else_by_its_text(script, tmp_path, overrides, name):
    for file in ("latest.txt", "a\\b.txt"):
        (tmp_path / file).write_text("A text.")
    shown = script("train", "--cfg", "job", *overrides)
    assert f"\nname: {name}\n" in shown.out, shown.err
