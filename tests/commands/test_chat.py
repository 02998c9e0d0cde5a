"""A chat in the terminal keeps every turn, whatever interrupts it, and says what the model says."""

import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gptmini
import programs
from gptmini.commands.chat import answer
from gptmini.generation import Conversation, Request, Rules, Session
from gptmini.generation.conversation import prompt_within
from gptmini.loading import load
from gptmini.system.errors import UserError
from gptmini.system.signals import CtrlC
from gptmini.tokenizer import byte, with_chat_template
from run_folders import save_model

PATIENCE = 60  # seconds


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "chat.ckpt"
    return save_model(path, with_chat_template(byte([])), context_length=96)


def said(conversation):
    """Return the answer to the last message."""
    return "".join(piece.text for piece in conversation.answer())


class Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self, *arguments):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "dumb"
            programs.run(programs.gptmini, "chat", *arguments)
        self.seen = b""

    def type(self, text):
        os.write(self.terminal, text.encode())

    def wait_for(self, pattern):
        """Return what the program shows up to a pattern."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline, self.seen
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.seen += os.read(self.terminal, 2**16)
        shown = self.seen[: found.end()]
        self.seen = self.seen[found.end() :]
        return shown

    def settle(self):
        """Drop what the program shows until it waits for input."""
        while select.select([self.terminal], [], [], 0.1)[0]:
            os.read(self.terminal, 2**16)
        self.seen = b""

    def end(self):
        """End the input, and return the exit code."""
        self.type("\x04")
        with suppress(OSError):  # Linux raises an error at the end of a terminal
            while os.read(self.terminal, 2**16):
                pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.slow
def test_fifty_turns_with_ctrl_c_at_random_moments_keep_the_history(chatty, tmp_path):
    """Pasted lines are one message."""
    draw = random.Random(0)
    options = ("--ignore-end-of-text", "--system", "Be brief.")
    chat = Terminal(str(chatty), *options)
    chat.wait_for(rb"> $")
    for turn in range(50):
        chat.type(f"message {turn}\n")
        chat.wait_for(rb"message \d+\r\n")
        time.sleep(draw.choice([0, 0.002, 0.02, 0.1]))
        chat.type("\x03")
        chat.wait_for(rb"> $")
        # An answer may end before Ctrl-C, which then shows a second prompt and would drop the next line.
        chat.settle()
    chat.type("\x1b[200~def f():\n    return 1\x1b[201~\n")
    chat.wait_for(rb"(?s)return 1.*> $")
    chat.type(f"/save {tmp_path / 'saved.jsonl'}\n")
    chat.wait_for(rb"saved \d+ messages(?s:.)*> $")
    assert chat.end() == 0

    messages = json.loads((tmp_path / "saved.jsonl").read_text())["messages"]
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert messages[-2] == {"role": "user", "content": "def f():\n    return 1"}
    messages = messages[:-2]
    # Ctrl-C drops a line that the terminal has echoed, but not yet handed over. Every other line has an answer.
    asked = [int(message["content"].removeprefix("message ")) for message in messages[1::2]]
    assert asked == sorted(set(asked))
    assert len(asked) > 10
    roles = [message["role"] for message in messages[1:]]
    assert roles == ["user", "assistant"] * len(asked)


@pytest.mark.parametrize(("seconds", "kept"), [((0, 0.001), 1), ((0, 2), 0)])
def test_a_second_ctrl_c_ends_an_answer(chatty, monkeypatch, seconds, kept):
    """One press of the key can give two signals. Two seconds later, the user presses the key again."""
    model, tokenizer = load(chatty)
    conversation = Conversation(model.eval(), tokenizer, Request(rules=Rules(), seed=1))
    times = iter(seconds)
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    step = Session.step

    def interrupted(self):
        for _ in seconds:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Session, "step", interrupted)
    with CtrlC() as ctrl_c, suppress(KeyboardInterrupt):
        answer(conversation, "One", ctrl_c)
    assert len(conversation.messages[1]["content"]) == kept


def chat_through_a_pipe(path, text, *options):
    """Return the exit code, stdout and stderr of a chat."""
    streams = {"stdin": subprocess.PIPE, "text": True, "errors": "surrogateescape"}
    with programs.start("chat", str(path), *options, **streams) as chat:
        printed = chat.communicate(text, timeout=PATIENCE)
    return SimpleNamespace(returncode=chat.returncode, stdout=printed[0], stderr=printed[1])


@pytest.mark.slow
def test_each_line_of_a_pipe_is_answered_as_a_conversation_is(chatty, tmp_path):
    text = f"One\nTwo\n/undo\n/system Be nice.\nThree\n/save {tmp_path / 'a.jsonl'}\n/clear\nFour\n"
    result = chat_through_a_pipe(chatty, text, "--max-new-tokens", "10", "--seed", "3")
    assert result.returncode == 0
    assert result.stderr.count("10 tokens") == 4
    assert result.stderr.count("\n") == 4 + 3  # /undo, /system and /clear

    model, tokenizer = load(chatty)
    request = Request(rules=Rules(max_new_tokens=10, temperature=0.8), seed=3)
    conversation = Conversation(model.eval(), tokenizer, request)

    def said_to(line):
        conversation.messages.append({"role": "user", "content": line})
        return said(conversation) + "\n"

    expected = said_to("One") + said_to("Two")
    del conversation.messages[2:]
    conversation.messages.insert(0, {"role": "system", "content": "Be nice."})
    expected += said_to("Three")
    saved = {"messages": [*conversation.messages]}
    expected += f"saved 5 messages to {tmp_path / 'a.jsonl'}\n"
    del conversation.messages[1:]
    expected += said_to("Four")
    assert result.stdout == expected
    assert json.loads((tmp_path / "a.jsonl").read_text()) == saved


@pytest.mark.slow
def test_what_cannot_be_answered_is_an_error_of_one_line(chatty, tmp_path):
    text = f"/dance\n/save\n{'long ' * 40}\n/usr/bin is a folder\n/save {tmp_path / 'a.jsonl'}\n"
    result = chat_through_a_pipe(chatty, text * 2, "--max-new-tokens", "3")
    unknown, incomplete, long, *_ = result.stderr.splitlines()
    assert result.returncode == 2
    assert "/dance" in unknown
    assert "/save FILE" in incomplete
    assert "96" in long
    first, second = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    assert first["messages"][0]["content"] == "/usr/bin is a folder"
    assert len(second["messages"]) == 4
    assert len(result.stdout) > 1

    slips = "/save a.jsonl\n/system \udcff\nOne\n/save a\0b\n/save /\nTwo\n"
    result = chat_through_a_pipe(chatty, slips, "--max-new-tokens", "3")
    empty, system, zero, folder = [line for line in result.stderr.splitlines() if "error" in line]
    assert "answer" in empty
    assert "UTF-8" in system
    assert r"a\x00b" in zero
    assert "cannot write /" in folder
    assert result.stdout.count("\n") >= 2

    base = save_model(tmp_path / "base.ckpt", byte([]))
    result = chat_through_a_pipe(base, "Hi\n")
    assert result.returncode == 2
    assert "data.template=chat" in result.stderr
    assert "--raw" in result.stderr
    result = chat_through_a_pipe(base, "Hi\n", "--raw", "--max-new-tokens", "3")
    assert (result.returncode, result.stdout[:2]) == (0, "Hi")


def test_old_turns_are_dropped_when_the_context_is_full_but_never_the_system_message(chatty):
    model, tokenizer = load(chatty)
    rules = Rules(max_new_tokens=20, temperature=0)
    system = {"role": "system", "content": "Be brief."}
    conversation = Conversation(model.eval(), tokenizer, Request(rules=rules, seed=1), [system])
    dropped = []
    for turn in range(6):
        conversation.messages.append({"role": "user", "content": f"message {turn}"})
        list(conversation.answer())
        dropped.append(conversation.n_dropped)
        # The answer is that of a conversation that never had the dropped messages.
        kept = [system, *conversation.messages[1 + conversation.n_dropped : -1]]
        fresh = Conversation(model, tokenizer, Request(rules=rules, seed=1), kept)
        assert said(fresh) == conversation.messages[-1]["content"]
    assert dropped[0] == 0 < dropped[-1]
    assert len(conversation.messages) == 13

    # A chat that is kept starts with a question, not with the result of a tool.
    messages = [
        system,
        {"role": "user", "content": "a" * 30},
        {"role": "tool", "content": "b" * 10},
        {"role": "assistant", "content": "c" * 10},
        {"role": "user", "content": "Hi"},
    ]
    prompt, n_dropped = prompt_within(96, tokenizer, messages, 20)
    assert n_dropped == 3
    assert tokenizer.decode(prompt) == "Be brief.\nUser: Hi\nAssistant:"


def test_an_answer_ends_where_the_context_ends(chatty, capsys):
    model, tokenizer = load(chatty)
    conversation = Conversation(
        model.eval(), tokenizer, Request(rules=Rules(), seed=1, ignore_end_of_text=True)
    )
    answer(conversation, "Hi", CtrlC())
    n_prompt = len("User: Hi\nAssistant:")
    # The last token of the answer does not need a place in the context of 96 tokens.
    assert f"stopped after {96 - n_prompt + 1} tokens; the context" in capsys.readouterr().err


@pytest.mark.parametrize(("n_old", "named"), [(1, "1 old message "), (2, "2 old messages ")])
def test_messages_that_are_left_out_are_counted(chatty, capsys, n_old, named):
    model, tokenizer = load(chatty)
    old = [{"role": "user", "content": "a" * 90}] * n_old
    rules = Rules(max_new_tokens=3)
    request = Request(rules=rules, seed=1)
    answer(Conversation(model.eval(), tokenizer, request, old), "Hi", CtrlC())
    assert named in capsys.readouterr().err


def test_chat_in_python_is_a_conversation(chatty):
    model, tokenizer = load(chatty)
    model.train()
    messages = [{"role": "user", "content": "Hi"}]
    options = {"max_new_tokens": 10, "temperature": 0.7, "top_k": 20, "seed": 3}
    text = gptmini.chat(model, tokenizer, messages, **options)
    rules = Rules(max_new_tokens=10, temperature=0.7, top_k=20)
    conversation = Conversation(model, tokenizer, Request(rules=rules, seed=3), messages)
    assert text == said(conversation)
    assert text == "".join(gptmini.chat(model, tokenizer, messages, stream=True, **options))
    assert text == gptmini.chat(model, tokenizer, messages, **options | {"seed": np.int64(3)})
    assert messages == [{"role": "user", "content": "Hi"}]
    assert model.training

    for wrong, named in [
        ({"max_tokens": 3}, "max_new_tokens"),
        ({"top_p": 2}, "top_p"),
        ({"stop": [""]}, "stop"),
    ]:
        with pytest.raises(UserError, match=named):
            gptmini.chat(model, tokenizer, messages, **wrong)
    with pytest.raises(UserError, match="chat template"):
        gptmini.chat(model, byte([]), messages)


@pytest.mark.slow
def test_retry_answers_again_with_another_seed(chatty, tmp_path):
    text = f"Hi\n/retry\n/save {tmp_path / 'a.jsonl'}\n/retry\n"
    result = chat_through_a_pipe(chatty, text.replace("\n", "\r\n"), "--seed", "3")
    assert result.returncode == 0
    ((question, found),) = [json.loads((tmp_path / "a.jsonl").read_text())["messages"]]
    assert question == {"role": "user", "content": "Hi"}

    model, tokenizer = load(chatty)
    rules = Rules(max_new_tokens=512, temperature=0.8)
    conversation = Conversation(model, tokenizer, Request(rules=rules, seed=4), [question])
    assert said(conversation) == found["content"]


@pytest.mark.slow
def test_commands_of_a_chat_answer_slips(chatty):
    text = "/undo\n/hlep\nHi\n/retry\n/undo\n/quit\n/dance\n"
    options = ("--max-new-tokens", "3", "--temperature", "0")
    result = chat_through_a_pipe(chatty, text, *options)
    empty, slip, _, same, _, undone = result.stderr.splitlines()
    assert "/undo" in empty
    assert slip.endswith("did you mean /help?")
    assert "--temperature" in same
    assert "Hi" in undone
    first, second = result.stdout.splitlines()
    assert first == second


def test_raw_is_sample_interactive(monkeypatch):
    seen = []
    monkeypatch.setattr("gptmini.commands.sample.main", seen.append)
    from gptmini.commands.chat import main

    main(["runs/latest", "--raw", "--seed", "3"])
    assert seen == [["--interactive", "runs/latest", "--seed", "3", "--max-new-tokens", "512"]]


def test_a_run_on_chats_samples_an_answer_and_names_chats_that_do_not_fit(script):
    questions = ["Who?"] * 10 + ["Where is the hat?"] * 190
    for name, some in (("chats", questions), ("val", ["What is it?", "Why?"])):
        chats = [json.dumps({"prompt": text, "completion": "Ada."}) for text in some]
        Path(f"{name}.jsonl").write_text("\n".join(chats))
    result = script(
        "train",
        "chats.jsonl",
        "experiment=smoke",
        "callbacks.pictures=null",
        "data.val_path=val.jsonl",
        "data.template=chat",
        "data.loss_on=answers",
        "model.context_length=32",
    )
    assert result.code == 0, result.err
    # Each byte is an id, and end-of-text follows the answer and the chat.
    shown = "User: {}\nAssistant: Ada.\n"
    longest = len(shown.format("Where is the hat?")) + 2
    assert len(shown.format("Who?")) + 2 <= 32 < longest
    (warning,) = [line for line in result.out.splitlines() if "200 chats" in line]
    assert re.findall(r"\d+ of \d+|model\.\w+=\d+", warning) == [
        "190 of 200",
        "model.context_length=32",
        f"model.context_length={longest}",
    ]
    assert "sample   User: What is it?\n         Assistant:" in result.out
