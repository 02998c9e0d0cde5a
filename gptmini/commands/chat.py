"""Talk to a trained model in the terminal: gptmini chat RUN [options]."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.arguments import at_least_one, print_resolved_run
from gptmini.commands.mistakes import Parser, one_line_errors, path_argument, print_error
from gptmini.commands.sample_options import add_device, add_sampling, rules_of
from gptmini.commands.sample_output import SHOWN_ON_TERMINALS, Interruption
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
            f"init_from={run} data=text data.path=chats.jsonl data.template=chat, or continue text with --raw"
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


def talk(conversation: "Conversation") -> bool:
    """Answer each line until the end of the input; Ctrl-C stops an answer and keeps what the model has said.

    Returns False if a line that was not typed, but piped, could not be answered.
    """
    is_typed = sys.stdin.isatty()
    interruption = Interruption()
    is_complete = True
    for line in lines(is_typed=is_typed):
        try:
            if line.startswith("/"):
                obey(conversation, line)
                continue
            if not line.strip():
                continue
            conversation.messages.append({"role": "user", "content": line})
            answer(conversation, interruption, is_typed=is_typed)
        except (UserError, OSError) as error:
            print_error(str(error))
            is_complete = False
    return is_complete or is_typed


def lines(*, is_typed: bool) -> Iterator[str]:
    """Yield the lines of the input; a message that is pasted comes as one line, with line breaks in it."""
    if not is_typed:
        for line in sys.stdin:
            yield line.removesuffix("\n")
        return

    # Python's input has history and editing if readline is imported, and readline takes a pasted text as one line.
    with suppress(ImportError):
        import readline

        readline.parse_and_bind("set enable-bracketed-paste on")
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            print()  # Ctrl-C drops the line
        except EOFError:
            print()
            return


def answer(conversation: "Conversation", interruption: Interruption, *, is_typed: bool) -> None:
    """Print the model's answer while it is drawn; without an answer, the question is taken back."""
    shown_as = SHOWN_ON_TERMINALS if sys.stdout.isatty() else {}
    n_before = len(conversation.messages)
    pieces = conversation.answer()
    try:
        for piece in interruption.until_interrupted(pieces):
            print(piece.translate(shown_as), end="", flush=True)
    except UserError:
        del conversation.messages[n_before - 1 :]
        raise
    finally:
        pieces.close()
    print(flush=True)

    if not is_typed:
        return
    if conversation.n_dropped:
        print(
            f"(the conversation exceeds the context; {conversation.n_dropped} old messages were left out)"
        )
    if conversation.finish == "length":
        print(f"(stopped after {conversation.rules.max_new_tokens} tokens; raise --max-new-tokens)")


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
