"""What someone who samples sees: prompts of every kind, both formats, stops, and a way out at any moment."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gptmini import load
from gptmini.generation import generate_stream
from gptmini.model import GPTConfig, new_gpt
from gptmini.model.checkpoint import header, write_checkpoint
from gptmini.tokenizer import CharTokenizer
from sizes import TALKATIVE

ROOT = Path(__file__).parent.parent.parent
LETTERS = CharTokenizer("\nabcdefghé", end_of_text=True)
CONFIG = GPTConfig(**TALKATIVE)


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """A model of nine letters, a line break and end-of-text, all of which it draws."""
    monkeypatch.chdir(tmp_path)
    model = new_gpt(CONFIG, seed=0)
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    write_checkpoint({"gptmini": header(CONFIG, LETTERS.to_dict()), "state_dict": state}, tmp_path / "m.ckpt")
    return "m.ckpt"


def expected(prompt, seed=1, num_samples=1, **options):
    """Texts by the library, one sample after another."""
    model, tokenizer = load("m.ckpt")
    texts = [""] * num_samples
    options = {"max_new_tokens": 200, "temperature": 0.8, **options}
    for piece in generate_stream(model, tokenizer, prompt, seed=seed, num_samples=num_samples, **options):
        texts[piece.sample] += piece.text
    return texts


def records(result):
    assert (result.code, result.err) == (0, "")
    return [json.loads(line) for line in result.out.splitlines()]


def test_a_file_of_prompts_gives_each_its_samples_in_order(script, checkpoint, tmp_path):
    (tmp_path / "prompts.txt").write_text("abc\n\nh\nfedcbafedcbafedcbafedcba\n", encoding="utf-8")
    prompts = ["abc", "h", "fedcbafedcbafedcbafedcba"]
    texts = {prompt: expected(prompt, num_samples=2) for prompt in prompts}
    many = ("--prompts", "prompts.txt", "--num-samples", "2", "--batch-size", "4")
    found = records(script("sample", checkpoint, *many, "--format", "jsonl"))
    assert [(r["prompt"], r["sample"], r["text"]) for r in found] == [
        (prompt, i, texts[prompt][i]) for prompt in prompts for i in range(2)
    ]
    shown = "\n".join(
        f"--- prompt {p + 1}, sample {i + 1}\n{prompt}{texts[prompt][i]}\n"
        for p, prompt in enumerate(prompts)
        for i in range(2)
    )
    assert script("sample", checkpoint, *many).out == shown


def test_prompts_come_as_jsonl_too(script, checkpoint, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a\\nb", "id": "\u2028"}\r\n\n{"prompt": "h"}\n')
    found = records(script("sample", checkpoint, "--prompts", "prompts.jsonl", "--format", "jsonl"))
    assert [(r["prompt"], r["text"]) for r in found] == [("a\nb", *expected("a\nb")), ("h", *expected("h"))]


def test_records_say_how_a_sample_ended_and_what_each_token_cost(script, checkpoint):
    arguments = ("--prompt", "abc", "--num-samples", "8", "--max-new-tokens", "6", "--format", "jsonl", "--logprobs")
    found = records(script("sample", checkpoint, *arguments, "--stop", "h", "--temperature", "1.5"))
    assert {record["finish"] for record in found} == {"length", "stop", "end_of_text"}
    model, tokenizer = load(checkpoint)
    for record in found:
        ids = tokenizer.encode("abc") + record["tokens"]
        with torch.no_grad():
            log_probabilities = model(torch.tensor([ids]))[0, 2:-1].log_softmax(-1)
        assert record["logprobs"] == pytest.approx(
            log_probabilities[range(len(record["tokens"])), record["tokens"]].tolist(), abs=1e-5
        )
        assert record["n_tokens"] == len(record["tokens"])
        shown = record["tokens"] if record["finish"] == "length" else record["tokens"][:-1]
        assert record["text"] == tokenizer.decode(shown)


def test_a_stop_string_with_an_escape_ends_the_sample_unseen(script, checkpoint):
    whole = script("sample", checkpoint, "--prompt", "abc", "--ignore-end-of-text").out.removesuffix("\n")
    stop = whole[20:23]
    assert "\n" in whole
    found = script("sample", checkpoint, "--prompt", "abc", "--ignore-end-of-text", "--stop", stop).out
    assert found == whole[: whole.index(stop, 3)] + "\n"
    found = script("sample", checkpoint, "--prompt", "abc", "--ignore-end-of-text", "--stop", r"\n").out
    assert found == whole[: whole.index("\n", 3)] + "\n"
    wild = ("sample", checkpoint, "--temperature", "9", "--ignore-end-of-text")
    whole = script(*wild).out
    assert [script(*wild, "--stop", stop).out for stop in ("é", r"\u00e9")] == [whole[: whole.index("é")] + "\n"] * 2


@pytest.mark.parametrize(
    "options",
    [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.4}, {"repetition_penalty": 1.9}, {"temperature": 0.0}, {"seed": 9}],
)
def test_every_rule_reaches_the_model(script, checkpoint, options):
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    found = script("sample", checkpoint, "--prompt", "abc", *arguments).out
    assert found == "abc" + expected("abc", **options)[0] + "\n"
    assert found != "abc" + expected("abc")[0] + "\n"


@pytest.mark.parametrize("dtype", ["fp64", "bf16", "int8"])
def test_dtype_is_that_of_the_weights(script, checkpoint, dtype):
    arguments = ("--prompt", "abc", "--max-new-tokens", "1", "--format", "jsonl", "--logprobs", "--temperature", "0")
    (record,) = records(script("sample", checkpoint, *arguments, "--dtype", dtype))
    model, tokenizer = load(checkpoint)
    with torch.no_grad():
        exact = model.double()(torch.tensor([tokenizer.encode("abc")]))[0, -1].log_softmax(-1).max().item()
    error = abs(record["logprobs"][0] - exact)
    assert error < 1e-12 if dtype == "fp64" else 1e-4 < error < 0.1


def test_typed_lines_are_continued_until_the_input_ends(script, checkpoint, monkeypatch):
    lines = iter(["abc", "abc", "ab?", ""])

    def type_line(prompt):
        assert prompt == ""
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", type_line)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    result = script("sample", checkpoint, "--interactive", "--max-new-tokens", "9")
    first, second = (expected("abc", seed=seed, max_new_tokens=9)[0] for seed in (1, 2))
    last = expected("", seed=4, max_new_tokens=9)[0]
    assert result.code == 0
    assert result.out == f"abc{first}\nabc{second}\n{last}\n"  # no prompt where nobody types
    assert result.err.startswith("error: every character must be among the 10 that were trained on, got '?'")


def start(*arguments, **options):
    """The script in a process of its own, which draws until it is stopped."""
    command = [sys.executable, str(ROOT / "scripts" / "sample.py"), "m.ckpt", "--prompt", "abc", "--ignore-end-of-text"]
    more = ("--max-new-tokens", "100000000", *arguments)
    return subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_ctrl_c_leaves_what_was_generated_and_exits_130(checkpoint):
    process = start()
    begun = process.stdout.read(300)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    text = (begun + rest).decode()
    n_tokens = len(text) - len("abc")
    assert n_tokens > 200
    assert ("abc" + expected("abc", max_new_tokens=n_tokens, ignore_end_of_text=True)[0]).startswith(text)


def test_ctrl_c_leaves_a_record_of_each_sample_that_was_begun(checkpoint):
    text = expected("abc", ignore_end_of_text=True)[0]
    process = start("--format", "jsonl", "--num-samples", "3", "--stop", text[30:42].replace("\n", r"\n"))
    begun = process.stdout.readline()  # the first sample has met its stop; the others go on
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    found = [json.loads(line) for line in (begun + rest).decode().splitlines()]
    assert [(record["sample"], record["finish"]) for record in found] == [(0, "stop"), (1, None), (2, None)]
    assert found[0]["text"] == text[: text.index(text[30:42])]
    for record, whole in zip(found, expected("abc", num_samples=3, ignore_end_of_text=True), strict=True):
        assert record["text"][:100]
        assert record["text"][:100] == whole[: len(record["text"])][:100]


def test_a_reader_that_has_seen_enough_ends_it_quietly(checkpoint):
    process = start()
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=30) == 0
    assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--logprobs"], "--logprobs needs --format jsonl"),
        (["--stop", ""], "--stop must not be empty"),
        (["--prompts", "none.txt"], "none.txt: No such file or directory"),
        (["--prompts", "empty.txt"], "empty.txt must hold at least one prompt, got none"),
        (["--prompts", "bad.jsonl"], "bad.jsonl, line 2 must be JSON"),
        (["--prompts", "odd.jsonl"], 'odd.jsonl, line 1 must be an object with a text, as in {"prompt": "Once"}'),
        (["--prompts", "unknown.txt"], "prompt 2: every character must be among the 10"),
        (["--min-p", "2"], "min_p must be a number above 0 and at most 1, got 2.0"),
        (["--repetition-penalty", "0"], "repetition_penalty must be a number from 0.001 to 1000, got 0.0"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--num-samples", "0"], "--num-samples must be at least 1, got 0"),
        (["--dtype", "fp8"], "argument --dtype: invalid choice: 'fp8'"),
        (["--dtype", "int8", "--compile"], "--dtype int8 needs a CPU and no --compile, got cpu with --compile"),
        (["--interactive", "--top-p", "7"], "top_p must be a number above 0 and at most 1, got 7.0"),
        (["--interactive", "--prompt", "a"], "not allowed with argument"),
    ],
)
def test_mistakes_are_one_line(script, checkpoint, tmp_path, arguments, message):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (tmp_path / "odd.jsonl").write_text('["a"]\n')
    (tmp_path / "unknown.txt").write_text("abc\nxyz\n")
    result = script("sample", checkpoint, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1


def test_a_checkpoint_is_all_that_sampling_needs(script, checkpoint, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\n")))
    assert script("sample", checkpoint, "--prompt", "-").out == "abc" + expected("abc")[0] + "\n"
    assert {path.name for path in Path().iterdir()} == {"m.ckpt", "my.txt"}


def test_what_a_system_encoding_lacks_is_written_all_the_same(checkpoint):
    arguments = [sys.executable, str(ROOT / "scripts" / "sample.py"), checkpoint, "--ignore-end-of-text"]
    arguments += ["--temperature", "9"]
    result = subprocess.run(arguments, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=True)
    assert "é" in result.stdout.decode("utf-8")


@pytest.mark.parametrize("arguments", [["--prompt", "-"], ["--interactive"]])
def test_a_missing_stdin_is_one_line(script, checkpoint, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdin", None)
    result = script("sample", checkpoint, *arguments)
    assert (result.code, result.err) == (2, "error: there is no stdin to read from\n")


@pytest.mark.parametrize("name", ["prompts.txt", "prompts.jsonl"])
def test_a_byte_order_mark_is_no_part_of_a_prompt(script, checkpoint, tmp_path, name):
    line = "abc" if name.endswith("txt") else '{"prompt": "abc"}'
    (tmp_path / name).write_bytes(f"\ufeff{line}\r\n".encode())
    assert script("sample", checkpoint, "--prompts", name).out == "abc" + expected("abc")[0] + "\n"


def test_two_signals_at_once_are_one_and_lose_nothing(checkpoint):
    process = start(
        "--format", "jsonl", "--num-samples", "2", "--stop", expected("abc", ignore_end_of_text=True)[0][30:42]
    )
    begun = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    assert [json.loads(line)["finish"] for line in (begun + rest).splitlines()] == ["stop", None]
