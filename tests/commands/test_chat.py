"""A chat in the terminal keeps every turn, whatever interrupts it, and says what the model says."""

import json
import os
import pty
import random
import re
import select
import subprocess
import sys
import time

import pytest
import torch

from gptmini.checkpoint.file import header, write_checkpoint
from gptmini.generation import Rules
from gptmini.loading import load
from gptmini.serving.conversation import Conversation
from gptmini.tokenizer import byte, with_chat_template
from sizes import TALKATIVE
from toys import wide_gpt

PATIENCE = 60  # seconds
COMMAND = (sys.executable, "-m", "gptmini", "chat")


def save(path, tokenizer):
    model = wide_gpt(TALKATIVE | {"vocab_size": tokenizer.n_vocab, "context_length": 96})
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    write_checkpoint(
        {"gptmini": header(model.config, tokenizer.to_dict()), "state_dict": state}, path
    )
    return path


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    return save(tmp_path_factory.mktemp("chat") / "chat.ckpt", with_chat_template(byte([])))


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, *command):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "dumb"
            os.execv(command[0], command)
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

    def end(self):
        """End the input, and return the exit code."""
        self.type("\x04")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.terminal)
                return os.waitstatus_to_exitcode(status)
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    os.read(self.terminal, 2**16)
                except OSError:
                    continue
        raise AssertionError("the program does not end")


@pytest.mark.slow
def test_fifty_turns_with_ctrl_c_at_random_moments_keep_the_history(chatty, tmp_path):
    draw = random.Random(0)
    options = ("--ignore-end-of-text", "--max-new-tokens", "300", "--system", "Be brief.")
    chat = Terminal(*COMMAND, str(chatty), *options)
    chat.wait_for(rb"> $")
    for turn in range(50):
        chat.type(f"message {turn}\n")
        chat.wait_for(rb"message \d+\r\n")
        time.sleep(draw.choice([0, 0.002, 0.02, 0.1]))
        chat.type("\x03")
        chat.wait_for(rb"> $")
    chat.type(f"/save {tmp_path / 'saved.jsonl'}\n")
    chat.wait_for(rb"saved \d+ messages")
    assert chat.end() == 0

    messages = json.loads((tmp_path / "saved.jsonl").read_text())["messages"]
    assert messages[0] == {"role": "system", "content": "Be brief."}
    # Ctrl-C drops a line that the terminal has echoed, but not yet handed over. Every other line has an answer.
    asked = [int(message["content"].removeprefix("message ")) for message in messages[1::2]]
    assert asked == sorted(set(asked))
    assert len(asked) > 40
    roles = [message["role"] for message in messages[1:]]
    assert roles == ["user", "assistant"] * len(asked)


def chat_through_a_pipe(path, text, *options):
    command = [*COMMAND, str(path), *options]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.slow
def test_each_line_of_a_pipe_is_answered_as_a_conversation_is(chatty, tmp_path):
    text = f"One\nTwo\n/undo\n/system Be nice.\nThree\n/save {tmp_path / 'a.jsonl'}\n/clear\nFour\n"
    result = chat_through_a_pipe(chatty, text, "--max-new-tokens", "10", "--seed", "3")
    assert (result.returncode, result.stderr) == (0, "")

    model, tokenizer = load(chatty)
    conversation = Conversation(
        model.eval(), tokenizer, Rules(max_new_tokens=10, temperature=0.8), seed=3
    )

    def said(line):
        conversation.messages.append({"role": "user", "content": line})
        return "".join(conversation.answer()) + "\n"

    expected = said("One") + said("Two")
    del conversation.messages[2:]
    conversation.messages.insert(0, {"role": "system", "content": "Be nice."})
    expected += said("Three")
    saved = {"messages": [*conversation.messages]}
    expected += f"saved 5 messages to {tmp_path / 'a.jsonl'}\n"
    del conversation.messages[1:]
    expected += said("Four")
    assert result.stdout == expected
    assert json.loads((tmp_path / "a.jsonl").read_text()) == saved


@pytest.mark.slow
def test_what_cannot_be_answered_is_an_error_of_one_line(chatty, tmp_path):
    result = chat_through_a_pipe(chatty, f"/dance\n{'long ' * 40}\nHi\n", "--max-new-tokens", "3")
    unknown, long = result.stderr.splitlines()
    assert result.returncode == 2
    assert "/dance" in unknown
    assert "96" in long
    assert len(result.stdout) > 1

    base = save(tmp_path / "base.ckpt", byte([]))
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
    conversation = Conversation(model.eval(), tokenizer, rules, messages=[system], seed=1)
    dropped = []
    for turn in range(6):
        conversation.messages.append({"role": "user", "content": f"message {turn}"})
        for _ in conversation.answer():
            pass
        dropped.append(conversation.n_dropped)
        # The answer is that of a conversation that never had the dropped messages.
        kept = [system, *conversation.messages[1 + conversation.n_dropped : -1]]
        fresh = Conversation(model, tokenizer, rules, messages=kept, seed=1)
        assert "".join(fresh.answer()) == conversation.messages[-1]["content"]
    assert dropped[0] == 0 < dropped[-1]
    assert len(conversation.messages) == 13


def test_a_later_turn_encodes_only_what_is_new(chatty, monkeypatch):
    model, tokenizer = load(chatty)
    rules = Rules(max_new_tokens=4, temperature=0)
    conversation = Conversation(model.eval(), tokenizer, rules, seed=1, ignore_end_of_text=True)
    encoded = []
    hidden = type(model).hidden

    def count(self, tokens, cache=None):
        encoded.append(tokens.numel())
        return hidden(self, tokens, cache)

    monkeypatch.setattr(type(model), "hidden", count)
    for _ in range(3):
        conversation.messages.append({"role": "user", "content": "Hi"})
        with torch.inference_mode():
            list(conversation.answer())
    first, *later = encoded
    assert first == len("User: Hi\nAssistant:") - 1
    assert len(later) == 2


def test_raw_is_sample_interactive(monkeypatch):
    seen = []
    monkeypatch.setattr("gptmini.commands.sample.main", seen.append)
    from gptmini.commands.chat import main

    main(["runs/latest", "--raw", "--seed", "3"])
    assert seen == [["--interactive", "runs/latest", "--seed", "3"]]
