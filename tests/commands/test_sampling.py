"""What someone who samples sees: prompts of every kind, both formats, stops, and a way out at any moment."""

import io
import json
import shlex
import shutil
import signal
import sys

import pytest
import torch

import programs
from gptmini import load
from gptmini.checkpoint.file import header, write_checkpoint
from gptmini.commands.sample import main
from gptmini.commands.sample_output import show_text
from gptmini.generation import TextPiece, generate
from gptmini.tokenizer import CharTokenizer
from sizes import TALKATIVE
from toys import wide_gpt

LETTERS = CharTokenizer("\nabcdefghé", end_of_text=True)


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """A model of nine letters, a line break and end-of-text, all of which it draws; it is all that sampling needs."""
    monkeypatch.chdir(tmp_path)
    model = wide_gpt(TALKATIVE)
    own = header(model.config, LETTERS.to_dict())
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    write_checkpoint({"gptmini": own, "state_dict": weights}, tmp_path / "m.ckpt")
    return "m.ckpt"


def test_the_newest_run_that_has_a_checkpoint_is_sampled_and_named(script, checkpoint, tmp_path):
    for name in ("2026-11-22_09-00-00", "2026-11-22_10-00-00"):
        (tmp_path / "runs" / "a" / name / "checkpoints").mkdir(parents=True)
        (tmp_path / "runs" / "a" / name / "config.yaml").write_text("version: 0.3.0\n")
    good, dead = sorted((tmp_path / "runs" / "a").iterdir())
    shutil.copy(checkpoint, good / "checkpoints" / "best.ckpt")

    result = script("sample", "runs/a", "--prompt=a", "--max-new-tokens=3")
    assert result.code == 0, result.err
    assert f"runs/a/{good.name}, the newest run with a checkpoint" in result.err
    shutil.copy(checkpoint, dead / "checkpoints" / "last.ckpt")
    result = script("sample", "runs/a", "--prompt=a", "--max-new-tokens=3")
    assert f"runs/a/{dead.name}, the newest run in runs/a\n" in result.err


def expected(prompt, *, seed=1, num_samples=1, **options):
    """Texts by the library, whose own tests compare it with an oracle."""
    options = {"max_new_tokens": 200, "temperature": 0.8, **options}
    return generate(*load("m.ckpt"), prompt, seed=seed, num_samples=num_samples, **options)


def records(result):
    assert (result.code, result.err) == (0, "")
    return [json.loads(line) for line in result.out.splitlines()]


def test_prompts_of_a_file_get_their_samples_in_order_as_text_and_as_json(
    script, checkpoint, tmp_path
):
    # An editor may put a byte order mark before the first prompt.
    (tmp_path / "p.txt").write_text("\ufeffabc\n\nhfedcbafedcbafedcba\n", encoding="utf-8")
    many = shlex.split("--prompts p.txt --num-samples 2 --batch-size 3")

    wanted = []
    shown = []
    prompts = ["abc", "hfedcbafedcbafedcba"]
    for number, text in enumerate(expected(prompts, num_samples=2)):
        prompt, i = divmod(number, 2)
        wanted.append((prompts[prompt], i, text))
        shown.append(f"--- prompt {prompt + 1}, sample {i + 1}\n{prompts[prompt]}{text}\n")

    found = records(script("sample", checkpoint, *many, "--format", "jsonl"))
    assert [(r["prompt"], r["sample"], r["text"]) for r in found] == wanted
    assert script("sample", checkpoint, *many).out == "\n".join(shown)


def test_prompts_come_from_json_lines_stdin_and_escapes(script, checkpoint, tmp_path, monkeypatch):
    (text,) = expected("a\nb")
    assert script("sample", checkpoint, "--prompt", r"a\nb").out == f"a\nb{text}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    (tmp_path / "prompt.txt").write_text("a\nb\n")  # an editor ends the last line
    in_file = script("sample", checkpoint, "--prompt-file", "prompt.txt")
    assert in_file.out == f"a\nb{text}\n"
    assert script("sample", checkpoint, "--prompt", "-").out == f"a\nb{text}\n"
    two = script("sample", checkpoint, "--prompt", "h", "--prompt", r"a\nb", "--format", "jsonl")
    texts = expected(["h", "a\nb"])
    assert [(r["prompt"], r["text"]) for r in records(two)] == [("h", texts[0]), ("a\nb", texts[1])]

    lines = '{"prompt": "a\\nb", "id": "\u2028"}\r\n\n{"prompt": "h"}\n'
    (tmp_path / "p.jsonl").write_text(lines)
    found = records(script("sample", checkpoint, "--prompts", "p.jsonl", "--format", "jsonl"))
    texts = expected(["a\nb", "h"])
    assert [(r["prompt"], r["text"]) for r in found] == [("a\nb", texts[0]), ("h", texts[1])]


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
    wild = ("sample", checkpoint, "--temperature", "9", "--ignore-end-of-text")
    whole = script(*wild).out
    for stop, typed in (("\n", r"\n"), ("é", r"\u00e9"), (whole[20:23], whole[20:23])):
        assert script(*wild, "--stop", typed).out == whole[: whole.index(stop)] + "\n"


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
    arguments = shlex.split("--prompt abc --max-new-tokens 1 --temperature 0 --logprobs")
    result = script("sample", checkpoint, *arguments, "--format", "jsonl", "--dtype", dtype)
    (record,) = records(result)

    model, tokenizer = load(checkpoint)
    with torch.no_grad():
        logits = model.double()(torch.tensor([tokenizer.encode("abc")]))[0, -1]  # (V,)
    error = abs(record["logprobs"][0] - logits.log_softmax(-1).max().item())
    assert error < 1e-12 if dtype == "fp64" else 1e-4 < error < 0.1


def test_typed_lines_are_continued_until_the_input_ends(script, checkpoint, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\nabc\nab?\n\n"))
    result = script("sample", checkpoint, "--interactive", "--max-new-tokens", "9")

    (first,) = expected("abc", seed=1, max_new_tokens=9)
    (second,) = expected("abc", seed=2, max_new_tokens=9)
    (last,) = expected("", seed=4, max_new_tokens=9)
    assert result.out == f"abc{first}\nabc{second}\n{last}\n"  # no prompt sign where nobody types
    # A program that pipes lines learns that one was refused.
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert "got '?' (U+003F) at position 2" in result.err


def start(*arguments):
    """The command in a process of its own, which draws until it is stopped."""
    endless = shlex.split("m.ckpt --prompt abc --ignore-end-of-text --max-new-tokens 100000000")
    # Without a buffer, which could hold more than was read, and which communicate() passes over.
    return programs.start("sample", *endless, *arguments, bufsize=0)


def interrupt(process, times=1):
    """What a process writes from its first Ctrl-C to its end, which must be a quiet one."""
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    return rest


@pytest.mark.slow
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


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_a_record_of_each_sample_that_was_begun(checkpoint, times):
    """Two signals at once, as from one press of the keys below another program, are one."""
    texts = expected("abc", num_samples=3, ignore_end_of_text=True)
    # Twelve letters that the first text holds, and another text hardly does.
    stop = max(texts[0].split("<|endoftext|>"), key=len)[:12]
    process = start("--format", "jsonl", "--num-samples", "3", "--stop", stop.replace("\n", r"\n"))
    begun = process.stdout.readline()  # the first sample has met its stop; the others go on
    found = [json.loads(line) for line in (begun + interrupt(process, times)).splitlines()]

    wanted = [(0, "stop"), (1, None), (2, None)]
    assert [(record["sample"], record["finish"]) for record in found] == wanted
    assert found[0]["text"] == texts[0][: texts[0].index(stop)]
    for record, whole in zip(found[1:], texts[1:], strict=True):
        assert record["text"][:100]
        assert record["text"][:100] == whole[: len(record["text"])][:100]


def test_a_reader_that_has_seen_enough_ends_it_quietly(checkpoint):
    process = start()
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=30) == 0
    assert process.stderr.read() == b""


def test_a_prompt_that_cannot_be_encoded_is_named_by_its_number(script, checkpoint, tmp_path):
    (tmp_path / "p.txt").write_text("abc\nxyz\n")
    result = script("sample", checkpoint, "--prompts", "p.txt")
    result.assert_refused("prompt 2: ", "got 'x' (U+0078) at position 0")
    assert result.out == ""


def test_what_a_system_encoding_lacks_is_written_all_the_same(checkpoint, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    main([checkpoint, "--ignore-end-of-text", "--temperature", "9"])
    assert "é" in written.getvalue().decode("utf-8")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_is_shown_control_characters_as_escapes(monkeypatch, capsys, is_terminal):
    text = "a\tb\n\x1b]0;title\x07\x9b2J\x7fé\r"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    show_text([TextPiece(0, text, 1, None, "length")], ["\x1b[2J"], 1)

    shown = r"\x1b[2Ja" + "\tb\n" + r"\x1b]0;title\x07\x9b2J\x7fé\x0d" + "\n"
    assert capsys.readouterr().out == (shown if is_terminal else f"\x1b[2J{text}\n")
