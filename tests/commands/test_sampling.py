"""What someone who samples sees: prompts of every kind, both formats, stops, and a way out at any moment."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gptmini import load
from gptmini.checkpoint.file import header, write_checkpoint
from gptmini.commands.sample_output import show_jsonl, show_text
from gptmini.generation import generate_stream
from gptmini.generation.text import Piece
from gptmini.tokenizer import CharTokenizer
from sizes import TALKATIVE
from toys import wide_gpt

SAMPLE = Path(__file__).parent.parent.parent / "scripts" / "sample.py"
LETTERS = CharTokenizer("\nabcdefghé", end_of_text=True)


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """A model of nine letters, a line break and end-of-text, all of which it draws."""
    monkeypatch.chdir(tmp_path)
    model = wide_gpt(TALKATIVE)
    own = header(model.config, LETTERS.to_dict())
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    write_checkpoint({"gptmini": own, "state_dict": weights}, tmp_path / "m.ckpt")
    return "m.ckpt"


def expected(prompt, seed=1, num_samples=1, **options):
    """Texts by the library, one sample after another."""
    model, tokenizer = load("m.ckpt")
    options = {"max_new_tokens": 200, "temperature": 0.8, **options}
    pieces = generate_stream(
        model, tokenizer, prompt, seed=seed, num_samples=num_samples, **options
    )

    texts = [""] * num_samples
    for piece in pieces:
        texts[piece.sample] += piece.text
    return texts


def records(result):
    assert (result.code, result.err) == (0, "")
    return [json.loads(line) for line in result.out.splitlines()]


def test_a_file_of_prompts_gives_each_its_samples_in_order(script, checkpoint, tmp_path):
    (tmp_path / "prompts.txt").write_text("abc\n\nh\nfedcbafedcbafedcbafedcba\n", encoding="utf-8")
    prompts = ["abc", "h", "fedcbafedcbafedcbafedcba"]
    texts = {prompt: expected(prompt, num_samples=2) for prompt in prompts}
    many = shlex.split("--prompts prompts.txt --num-samples 2 --batch-size 4")

    wanted = []
    shown = []
    for number, prompt in enumerate(prompts, start=1):
        for i, text in enumerate(texts[prompt]):
            wanted.append((prompt, i, text))
            shown.append(f"--- prompt {number}, sample {i + 1}\n{prompt}{text}\n")

    found = records(script("sample", checkpoint, *many, "--format", "jsonl"))
    assert [(r["prompt"], r["sample"], r["text"]) for r in found] == wanted
    assert script("sample", checkpoint, *many).out == "\n".join(shown)


def test_prompts_come_as_jsonl_too(script, checkpoint, tmp_path):
    text = '{"prompt": "a\\nb", "id": "\u2028"}\r\n\n{"prompt": "h"}\n'
    (tmp_path / "prompts.jsonl").write_text(text)

    found = records(script("sample", checkpoint, "--prompts", "prompts.jsonl", "--format", "jsonl"))
    wanted = [("a\nb", *expected("a\nb")), ("h", *expected("h"))]
    assert [(r["prompt"], r["text"]) for r in found] == wanted


def test_records_say_how_a_sample_ended_and_what_each_token_cost(script, checkpoint):
    many = shlex.split("--prompt abc --num-samples 8 --max-new-tokens 4 --stop h --temperature 1.5")
    found = records(script("sample", checkpoint, *many, "--format", "jsonl", "--logprobs"))
    assert {record["finish"] for record in found} == {"length", "stop", "end_of_text"}

    model, tokenizer = load(checkpoint)
    for record in found:
        tokens = record["tokens"]
        ids = tokenizer.encode("abc") + tokens
        with torch.no_grad():
            log_probabilities = model(torch.tensor([ids]))[0, 2:-1].log_softmax(-1)  # (T, V)
        of_tokens = log_probabilities[range(len(tokens)), tokens]

        assert record["logprobs"] == pytest.approx(of_tokens.tolist(), abs=1e-5)
        assert record["n_tokens"] == len(tokens)
        shown = tokens if record["finish"] == "length" else tokens[:-1]
        assert record["text"] == tokenizer.decode(shown)


def test_a_stop_string_with_an_escape_ends_the_sample_unseen(script, checkpoint):
    endless = ("sample", checkpoint, "--prompt", "abc", "--ignore-end-of-text")
    whole = script(*endless).out.removesuffix("\n")
    stop = whole[20:23]
    assert "\n" in whole

    assert script(*endless, "--stop", stop).out == whole[: whole.index(stop, 3)] + "\n"
    assert script(*endless, "--stop", r"\n").out == whole[: whole.index("\n", 3)] + "\n"

    wild = ("sample", checkpoint, "--temperature", "9", "--ignore-end-of-text")
    whole = script(*wild).out
    for stop in ("é", r"\u00e9"):
        assert script(*wild, "--stop", stop).out == whole[: whole.index("é")] + "\n"


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 3},
        {"top_p": 0.5},
        {"min_p": 0.4},
        {"repetition_penalty": 1.9},
        {"temperature": 0.0},
        {"seed": 9},
    ],
)
def test_every_rule_reaches_the_model(script, checkpoint, options):
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    found = script("sample", checkpoint, "--prompt", "abc", *arguments).out

    assert found == "abc" + expected("abc", **options)[0] + "\n"
    assert found != "abc" + expected("abc")[0] + "\n"


@pytest.mark.parametrize("dtype", ["fp64", "bf16"])
def test_dtype_is_that_of_the_weights(script, checkpoint, dtype):
    arguments = shlex.split(
        "--prompt abc --max-new-tokens 1 --temperature 0 --format jsonl --logprobs"
    )
    (record,) = records(script("sample", checkpoint, *arguments, "--dtype", dtype))

    model, tokenizer = load(checkpoint)
    with torch.no_grad():
        logits = model.double()(torch.tensor([tokenizer.encode("abc")]))[0, -1]  # (V,)
    error = abs(record["logprobs"][0] - logits.log_softmax(-1).max().item())
    if dtype == "fp64":
        assert error < 1e-12
    else:
        assert 1e-4 < error < 0.1


def test_typed_lines_are_continued_until_the_input_ends(script, checkpoint, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\nabc\nab?\n\n"))
    result = script("sample", checkpoint, "--interactive", "--max-new-tokens", "9")

    (first,) = expected("abc", seed=1, max_new_tokens=9)
    (second,) = expected("abc", seed=2, max_new_tokens=9)
    (last,) = expected("", seed=4, max_new_tokens=9)
    refused = "error: every character must be among the 10 that were trained on, got '?'"
    assert (
        result.code == 2
    )  # nobody types, and a program that pipes lines learns of the refused one
    assert result.out == f"abc{first}\nabc{second}\n{last}\n"  # no prompt where nobody types
    assert result.err.startswith(refused)


def start(*arguments):
    """The script in a process of its own, which draws until it is stopped."""
    endless = shlex.split("m.ckpt --prompt abc --ignore-end-of-text --max-new-tokens 100000000")
    command = [sys.executable, str(SAMPLE), *endless, *arguments]
    # Without a buffer, which could hold more than was read, and which communicate() passes over.
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)


def stop_within(text):
    """Twelve letters that a text holds and another text hardly does."""
    return max(text.split("<|endoftext|>"), key=len)[:12]


def interrupt(process, times=1):
    """What a process writes from its first Ctrl-C to its end, which must be a quiet one."""
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    return rest


def test_ctrl_c_leaves_what_was_generated_and_exits_130(checkpoint):
    process = start()
    begun = b""
    while len(begun) < 300:
        begun += process.stdout.read(300 - len(begun))
    text = (begun + interrupt(process)).decode()

    n_tokens = len(text) - len("abc")
    (whole,) = expected("abc", max_new_tokens=n_tokens, ignore_end_of_text=True)
    assert n_tokens > 200
    assert f"abc{whole}".startswith(text)


def test_ctrl_c_leaves_a_record_of_each_sample_that_was_begun(checkpoint):
    texts = expected("abc", num_samples=3, ignore_end_of_text=True)
    stop = stop_within(texts[0])
    process = start("--format", "jsonl", "--num-samples", "3", "--stop", stop.replace("\n", r"\n"))
    begun = process.stdout.readline()  # the first sample has met its stop; the others go on
    found = [json.loads(line) for line in (begun + interrupt(process)).decode().splitlines()]

    wanted = [(0, "stop"), (1, None), (2, None)]
    assert [(record["sample"], record["finish"]) for record in found] == wanted
    assert found[0]["text"] == texts[0][: texts[0].index(stop)]
    for record, whole in zip(found, texts, strict=True):
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
        (
            ["--prompts", "odd.jsonl"],
            'odd.jsonl, line 1 must be an object with a text, as in {"prompt": "Once"}',
        ),
        (["--prompts", "unknown.txt"], "prompt 2: every character must be among the 10"),
        (["--min-p", "2"], r"min_p must be .*1, got 2\.0"),
        (["--repetition-penalty", "0"], r"repetition_penalty must be .*, got 0\.0"),
        (["--batch-size", "0"], "--batch-size: must be a whole number of at least 1, got 0"),
        (["--num-samples", "x"], "--num-samples: must be a whole number of at least 1, got x"),
        (["--dtype", "fp8"], "argument --dtype: invalid choice: 'fp8'"),
        (["--interactive", "--top-p", "7"], r"top_p must be .*1, got 7\.0"),
        (["--interactive", "--prompt", "a"], "not allowed with argument"),
        (["--interactive", "--prompt", ""], "not allowed with argument"),
        (["--prompt-file", ""], "--prompt-file: must be a file or a folder, got an empty name"),
        (["--prompts="], "--prompts: must be a file or a folder, got an empty name"),
        (["--prompts", "latin.txt"], r"latin\.txt must be UTF-8: .*byte 0xe9 in position 0"),
    ],
)
def test_mistakes_are_one_line(script, checkpoint, tmp_path, arguments, message):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (tmp_path / "odd.jsonl").write_text('["a"]\n')
    (tmp_path / "unknown.txt").write_text("abc\nxyz\n")
    (tmp_path / "latin.txt").write_bytes(b"\xe9")

    result = script("sample", checkpoint, *arguments)

    assert (result.code, result.out) == (2, "")
    assert re.search(message, result.err), result.err
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1


def test_a_checkpoint_is_all_that_sampling_needs(script, checkpoint, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\n")))
    assert script("sample", checkpoint, "--prompt", "-").out == "abc" + expected("abc")[0] + "\n"
    assert {path.name for path in Path().iterdir()} == {"m.ckpt", "my.txt"}


def test_what_a_system_encoding_lacks_is_written_all_the_same(checkpoint):
    wild = ("--ignore-end-of-text", "--temperature", "9")
    command = [sys.executable, str(SAMPLE), checkpoint, *wild]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert "é" in result.stdout.decode("utf-8")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_is_shown_control_characters_as_escapes(monkeypatch, capsys, is_terminal):
    texts = ["a\tb\n", "\x1b]0;title\x07", "\x9b2J\x7f", "é\r"]
    pieces = []
    for i, text in enumerate(texts):
        finish = "length" if i == len(texts) - 1 else None
        pieces.append(Piece(0, text, i, None, finish))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    show_text(pieces, ["\x1b[2J"], 1)

    expected = r"\x1b[2Ja" + "\tb\n" + r"\x1b]0;title\x07\x9b2J\x7fé\x0d" + "\n"
    if not is_terminal:
        expected = "\x1b[2J" + "".join(texts) + "\n"
    assert capsys.readouterr().out == expected


def test_json_holds_no_control_character_and_the_same_text(capsys):
    text = "\x1b[2J\x7f\x9bé"
    show_jsonl([Piece(0, text, 1, None, "length")], [""], 1, logprobs=False)
    out = capsys.readouterr().out
    assert json.loads(out)["text"] == text
    assert out.rstrip("\n").isprintable()


def test_a_mistake_is_not_written_to_stdout_where_stderr_is_closed(script, checkpoint, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    result = script("sample", checkpoint, "--num-samples", "0")
    assert (result.code, result.out) == (2, "")


def test_lines_from_a_pipe_are_continued_where_stderr_is_closed(script, checkpoint, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\n"))
    monkeypatch.setattr(sys, "stderr", None)
    result = script("sample", checkpoint, "--interactive", "--max-new-tokens", "9")
    assert (result.code, result.out) == (0, f"abc{expected('abc', max_new_tokens=9)[0]}\n")


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
    (text,) = expected("abc", ignore_end_of_text=True)
    process = start("--format", "jsonl", "--num-samples", "2", "--stop", stop_within(text))
    begun = process.stdout.readline()
    found = [json.loads(line) for line in (begun + interrupt(process, times=2)).splitlines()]
    assert [record["finish"] for record in found] == ["stop", None]
