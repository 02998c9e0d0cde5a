"""Lines and progress on a terminal, in a pipe and in the log of a run."""

import io

import pytest
from rich.console import Console

from gptmini.console.progress import Progress
from gptmini.console.terminal import BrokenPipeConsole, Screen, progress_line, wrapped


class Failing(io.StringIO):
    """A file that rejects all writes, as on a full disk."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error or OSError(28, "No space left on device")

    def write(self, text):
        raise self.error


def test_a_line_is_kept_on_one_of_console_and_log_if_the_other_is_on_a_full_disk():
    kept = io.StringIO()
    Screen(Console(file=Failing()), kept).print_line("a line")
    assert kept.getvalue() == "a line\n"

    shown = io.StringIO()
    Screen(Console(file=shown), Failing()).print_line("a line")
    assert shown.getvalue() == "a line\n"


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_end_the_run():
    lasting = BrokenPipeConsole(file=Failing(BrokenPipeError()))
    lasting.print("to nobody")
    lasting.print("still here")
    assert lasting.quiet


def test_what_a_model_writes_does_nothing_to_a_terminal():
    shown = io.StringIO()
    Screen(Console(file=shown)).print_line("a\x1b[31m\x00\u202eb")
    assert shown.getvalue() == "a\\x1b[31m\\x00\\u202eb\n"


def test_lines_break_between_words_on_a_terminal_and_commands_stay_whole():
    shown, kept = io.StringIO(), io.StringIO()
    console = Console(file=shown, force_terminal=True, width=30, soft_wrap=True)
    screen = Screen(console, kept)
    line = f"data     a text with words and a {'long' * 9} word"
    command = "next     gptmini sample runs/x --prompt 'To be'"
    screen.print_line(line)
    screen.print_topic("next", command.removeprefix("next     "))
    wanted = ["data     a text with words and", "         a", f"         {'long' * 9}"]
    assert shown.getvalue().splitlines() == [*wanted, "         word", command]
    assert kept.getvalue().splitlines() == [line, command]
    assert wrapped(line, Console(file=kept, width=30)) == line


@pytest.mark.parametrize(
    ("n_bytes", "share", "seconds", "said"),
    [
        (0, None, 5, "tokenising"),
        (3_000_000, 0.25, 0.5, "tokenising: 3 MB, 25%"),
        (3_000_000, 0.25, 2, "tokenising: 3 MB, 25%, 1.5 MB/s, 6 s left"),
        (4_000_000_000, 0.1, 100, "tokenising: 4,000 MB, 10%, 40.0 MB/s, 15 min 00 s left"),
    ],
)
def test_progress_tells_what_is_done_how_fast_and_the_time_left(n_bytes, share, seconds, said):
    progress = Progress(phase="tokenising", n_bytes=n_bytes, share=share)
    assert progress_line(progress, seconds=seconds) == said
