"""A name or a message from other people's files must not control the terminal.

The message has OSC 52 (ESC and BEL), which writes the clipboard, a C1 control, and a bidirectional control.
"""

import io
import json

import pytest
from rich.console import Console

from gptmini.commands.mistakes import print_error
from gptmini.commands.sample_output import show_jsonl
from gptmini.console import printing
from gptmini.console.terminal import Screen, show_progress
from gptmini.generation import TextPiece
from gptmini.job import result

HOSTILE = "a\x1b]52;c;aGk=\x07b\x9b31mc\u202ed"
SHOWN = r"a\x1b]52;c;aGk=\x07b\x9b31mc\u202ed"


def note_of_progress(text):
    with show_progress(Console(force_terminal=False, soft_wrap=True), "data") as watcher:
        watcher.on_note(text)


def line_of_a_run(text):
    Screen(Console(soft_wrap=True)).print_line(text)


def sample_as_json(text):
    piece = TextPiece(sample=0, text=text, token=1, log_probability=None, finish="length")
    show_jsonl([piece], [text], 1, logprobs=False)


@pytest.mark.parametrize(
    "sink",
    [
        print_error,
        printing.print_lines,
        printing.print_note,
        lambda text: printing.print_topic(text, text),
        note_of_progress,
        line_of_a_run,
    ],
)
def test_a_message_reaches_the_terminal_with_escapes(sink, capsys):
    sink(HOSTILE)
    out, err = capsys.readouterr()
    assert SHOWN in out + err
    assert (out + err).replace("\n", "").isprintable()


def test_the_reason_of_a_failure_is_written_with_escapes(tmp_path):
    class Run:
        folder = tmp_path
        log = io.StringIO()
        step = 0

    class Module:
        global_step = 0

    with pytest.raises(ZeroDivisionError), result.recording_failure(Run, Module, began=0.0):
        raise ZeroDivisionError(HOSTILE)
    assert SHOWN in Run.log.getvalue()
    assert Run.log.getvalue().replace("\n", "").isprintable()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_gets_json_lines_without_control_characters(is_terminal, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    sample_as_json(HOSTILE)
    line = capsys.readouterr().out
    assert json.loads(line)["text"] == HOSTILE
    assert line.strip().isprintable() is is_terminal


def test_a_strangers_run_is_refused_with_escapes(trained, script):
    config = trained / "config.yaml"
    config.write_text(
        config.read_text().replace("gptmini.training.Scalars", f'"{json.dumps(HOSTILE)[1:-1]}"')
    )
    refused = script("train", f"resume={trained}")
    refused.assert_refused(SHOWN)
    assert refused.err.strip().isprintable()
