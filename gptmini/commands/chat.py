"""Talk to a trained model in the terminal: gptmini chat RUN [options]."""

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.arguments import at_least_one, print_resolved_run
from gptmini.commands.mistakes import Parser, one_line_errors, path_argument, print_error
from gptmini.commands.sample_options import add_device, add_sampling, rules_of
from gptmini.commands.sample_output import SHOWN_ON_TERMINALS
from gptmini.configuration.messages import advising_on_memory
from gptmini.process import MISUSE, restore_gc_and_sigint
from gptmini.settings import CHAT_TOKENS
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.serving.conversation import Conversation

HELP = "/clear: start again; /undo: remove the last turn; /save FILE: write the chat; /system TEXT: set the system text"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        prog="gptmini chat",
        description="Talk to a trained model. Ctrl-C stops an answer, Ctrl-D ends.",
        epilog=f"In a chat: {HELP}",
    )
    parser.add_argument(
        "run",
        type=path_argument,
        help="run folder (its best checkpoint), checkpoint file or exported folder, such as runs/latest",
    )
    parser.add_argument("--system", help="system message, which tells the model how to answer")
    parser.add_argument(
        "--raw",
        action="store_true",
        help="continue each line as text, without a chat template",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=at_least_one,
        default=CHAT_TOKENS,
        help="maximum number of tokens per answer (default: %(default)s)",
    )
    add_sampling(parser)
    add_device(parser)
    options = parser.parse_args(arguments)
    if options.raw and options.system is not None:
        parser.error("give either --raw or --system, not both")
    return options


@one_line_errors()
@advising_on_memory("use a machine with more memory")
def main(arguments: list[str] | None = None) -> None:
    """Load the model, and answer each line that is typed, or that stdin has."""
    options = parse(arguments)
    if options.raw:
        # Text is continued, not answered: that is gptmini sample.
        from gptmini.commands import sample

        given = sys.argv[2:] if arguments is None else arguments
        sample.main(["--interactive", *(word for word in given if word != "--raw")])
        return
    if not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")  # pyrefly: ignore[missing-attribute]

    from gptmini.generation import Rules
    from gptmini.loading import load_for_sampling
    from gptmini.runs import named_run
    from gptmini.serving.conversation import Conversation

    rules = Rules(**rules_of(options))
    restore_gc_and_sigint()
    run = named_run(options.run, saved=True)
    model, tokenizer = load_for_sampling(run, device=options.device, dtype=options.dtype)
    if tokenizer.chat_template is None:
        raise UserError(
            f"{run} has no chat template, because it was not trained on chats; fine-tune it with gptmini train "
            f"chats.jsonl init_from={run} data.template=chat, or continue text with --raw"
        )
    conversation = Conversation(
        model,
        tokenizer,
        rules,
        messages=system_messages(options.system),
        seed=options.seed,
        stop=options.stop,
        ignore_end_of_text=options.ignore_end_of_text,
    )
    print_resolved_run(options.run, run)
    is_complete = talk(conversation)
    sys.exit(0 if is_complete else MISUSE)


def system_messages(system: str | None) -> list[dict[str, str]]:
    """Return the messages with which a conversation starts."""
    return [] if system is None else [{"role": "system", "content": system}]


class CtrlC:
    """Handles Ctrl-C in a with block: it drops the line that the user types, or stops the model's answer.

    While the model answers, a second Ctrl-C raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.is_typing = False
        self.came = False  # whether Ctrl-C was pressed since reset

    def __enter__(self) -> "CtrlC":
        """Install the handler."""
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handler from before."""
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: object) -> None:
        if self.is_typing or self.came:
            raise KeyboardInterrupt
        self.came = True


def talk(conversation: "Conversation") -> bool:
    """Answer each line until the end of the input; Ctrl-C stops an answer and keeps what the model has said.

    Returns False if a line from a pipe or a file could not be answered. A person who types has seen the error.
    """
    is_typed = sys.stdin.isatty()
    is_complete = True
    with CtrlC() as ctrl_c:
        for line in lines(ctrl_c, is_typed=is_typed):
            ctrl_c.came = False
            try:
                if line.startswith("/"):
                    obey(conversation, line)
                elif line.strip():
                    answer(conversation, line, ctrl_c, is_typed=is_typed)
            except (UserError, OSError) as error:
                print_error(str(error))
                is_complete = False
    return is_complete or is_typed


def lines(ctrl_c: CtrlC, *, is_typed: bool) -> Iterator[str]:
    """Yield the lines of the input. A message that is pasted comes as one line, with line breaks in it."""
    if not is_typed:
        for line in sys.stdin:
            yield line.removesuffix("\n")
        return

    # If readline is imported, input() has history and editing, and takes a pasted text as one line.
    with suppress(ImportError):
        import readline

        readline.parse_and_bind("set enable-bracketed-paste on")
    while True:
        line = None
        try:
            ctrl_c.is_typing = True
            line = input("> ")
            ctrl_c.is_typing = False
        except KeyboardInterrupt:  # it may come just after the line was complete
            ctrl_c.is_typing = False
            if line is None:
                print()
                continue
        except EOFError:
            print()
            return
        yield line


def answer(conversation: "Conversation", line: str, ctrl_c: CtrlC, *, is_typed: bool) -> None:
    """Print the model's answer to a line while it is drawn. If there is no answer, forget the line."""
    shown_as = SHOWN_ON_TERMINALS if sys.stdout.isatty() else {}
    n_before = len(conversation.messages)
    conversation.messages.append({"role": "user", "content": line})
    pieces = conversation.answer()
    try:
        for piece in pieces:
            print(piece.translate(shown_as), end="", flush=True)
            if ctrl_c.came:
                break
    except UserError:
        del conversation.messages[n_before:]
        raise
    finally:
        pieces.close()
    print(flush=True)

    if not is_typed:
        return
    if conversation.n_dropped:
        print(f"({conversation.n_dropped} old messages were left out, because the context is full)")
    if conversation.finish == "length":
        limit = conversation.rules.max_new_tokens
        print(f"(stopped after {limit} tokens; raise --max-new-tokens)")


def obey(conversation: "Conversation", line: str) -> None:
    """Carry out a command that starts with a slash; UserError if it is unknown or has no argument."""
    name, _, argument = line.partition(" ")
    argument = argument.strip()
    messages = conversation.messages
    has_system = bool(messages) and messages[0]["role"] == "system"
    if name == "/clear":
        del messages[1 if has_system else 0 :]
    elif name == "/undo":
        while messages and messages[-1]["role"] != "system":
            if messages.pop()["role"] == "user":
                break
    elif name == "/system" and argument:
        messages[: 1 if has_system else 0] = system_messages(argument)
    elif name == "/save" and argument:
        chat = json.dumps({"messages": messages}, ensure_ascii=False)
        Path(argument).expanduser().write_text(f"{chat}\n", encoding="utf-8")
        print(f"saved {len(messages)} messages to {argument}")
    else:
        raise UserError(f"unknown command {line:.80}; use one of: {HELP}")
