"""Talk to a trained model in the terminal: gptmini chat RUN [options]."""

import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from gptmini import generation
from gptmini.commands import sample
from gptmini.commands.mistakes import one_line_errors
from gptmini.commands.options import parse_options
from gptmini.commands.sample_options import DEVICE, RUN, SAMPLING, request_of
from gptmini.commands.sample_output import SHOWN_ON_TERMINALS, answer_lines
from gptmini.configuration.messages import advising_on_memory
from gptmini.console.printing import print_lines, print_note, print_resolved_run
from gptmini.runs import named_run
from gptmini.settings import CHAT_TOKENS, SAMPLE_SEED
from gptmini.system.errors import UserError, did_you_mean
from gptmini.system.files import encodable, expand_home
from gptmini.system.process import restore_gc_and_sigint
from gptmini.system.signals import CtrlC
from gptmini.tokenizer import missing_template

OPTIONS = rf"""
{RUN}
| --system MESSAGE  system message, which tells the model how to answer
| --raw  continue each line as text, without a chat template
--max-new-tokens COUNT={CHAT_TOKENS}  maximum number of generated tokens
--seed INTEGER={SAMPLE_SEED}  random seed; the same seed gives the same samples
{SAMPLING}
{DEVICE}
"""
DESCRIPTION = "Talk to a trained model. Ctrl-C stops an answer, Ctrl-D ends."
# The commands in a chat, and their help.
CHAT_COMMANDS = {
    "/clear": "start again",
    "/retry": "answer the last message again, with a different seed",
    "/undo": "remove the last turn",
    "/save FILE": "append the chat to FILE as a line of JSON",
    "/system TEXT": "set the system message",
    "/help": "list the commands",
    "/quit": "end the chat, like /exit and Ctrl-D",
}
CHAT_HELP = "; ".join(f"{command}: {help}" for command, help in CHAT_COMMANDS.items())
# A line that starts with / is a command, unless it starts with a path such as /usr/bin.
COMMAND = re.compile(r"(/[a-z]+)(?:\s+(.*))?", re.DOTALL)


@one_line_errors()
@advising_on_memory("use a machine with more memory")
def main(arguments: list[str]) -> None:
    """Load the model, and answer each line of stdin."""
    options = parse_options("chat", DESCRIPTION, OPTIONS, arguments, f"In a chat: {CHAT_HELP}")
    if options.raw:
        # gptmini sample continues text. It has a different default length.
        length = ["--max-new-tokens", str(options.max_new_tokens)]
        sample.main(["--interactive", *(word for word in arguments if word != "--raw"), *length])
        return
    if not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")  # pyrefly: ignore[missing-attribute]

    # Look for the run before the import of torch, which takes seconds.
    run = named_run(options.run, saved=True)
    request = replace(request_of(options), seed=options.seed)

    from gptmini.loading import load_for_sampling
    from gptmini.system.hardware import dtype_name

    restore_gc_and_sigint()
    model, tokenizer = load_for_sampling(run, device=options.device, dtype=options.dtype)
    if tokenizer.chat_template is None:
        raise UserError(f"{missing_template(run, run)}; or continue text with --raw")
    messages = system_messages(options.system)
    conversation = generation.Conversation(model, tokenizer, request, messages)
    print_resolved_run(options.run, run)
    if options.dtype == "auto" and dtype_name(model.embedding.weight.dtype) == "bf16":
        print_note("note: the model computes in bf16; --dtype fp32 is slower and more precise")
    hint = "(Ctrl-C stops an answer, Ctrl-D ends the chat, /help lists the commands)"
    sys.exit(answer_lines(partial(respond, conversation), hint))


def system_messages(system: str | None) -> list[dict[str, str]]:
    """Return the messages with which a conversation starts."""
    return [] if system is None else [{"role": "system", "content": system}]


def respond(conversation: "generation.Conversation", line: str, ctrl_c: CtrlC) -> None:
    """Answer a message, or run a command of the chat. Raises EOFError at the command that ends the chat."""
    command = COMMAND.fullmatch(line.strip())
    if command is not None and command[1] in ("/exit", "/quit"):
        raise EOFError
    if encodable(line) != line:
        raise UserError("the line is not UTF-8 text; type it again")
    if command is not None:
        line = obey(conversation, command[1], command[2] or "")
    if line.strip():
        answer(conversation, line, ctrl_c)


def answer(conversation: "generation.Conversation", line: str, ctrl_c: CtrlC) -> None:
    """Print the model's answer to a line while it is generated. If the line cannot be answered, forget it."""
    escapes = SHOWN_ON_TERMINALS if sys.stdout.isatty() else {}
    n_before = len(conversation.messages)
    conversation.messages.append({"role": "user", "content": line})
    pieces = conversation.answer()
    n_tokens = 0
    try:
        for piece in ctrl_c.until_pressed(pieces):
            print(piece.text.translate(escapes), end="", flush=True)
            n_tokens += 1
    except UserError:
        del conversation.messages[n_before:]
        raise
    finally:
        pieces.close()
    print(flush=True)

    if conversation.n_dropped:
        n = conversation.n_dropped
        noun = "message was" if n == 1 else "messages were"
        print_note(f"({n} old {noun} left out, because the context is full)")
    if conversation.finish == "length":
        is_allowed = n_tokens == conversation.request.rules.max_new_tokens
        fix = "raise --max-new-tokens" if is_allowed else "the context is full; use /clear or /undo"
        print_note(f"(stopped after {n_tokens} tokens; {fix})")


def obey(conversation: "generation.Conversation", name: str, argument: str) -> str:
    """Run a command of the chat. For /retry, return the message that the model answers again; otherwise ''.

    Raises UserError if the command is unknown, if its argument or a turn is missing, or if a file cannot be written.
    """
    argument = argument.strip()
    messages = conversation.messages
    has_system = bool(messages) and messages[0]["role"] == "system"

    if name in ("/save", "/system") and not argument:
        raise UserError(f"{name} requires an argument; {CHAT_HELP}")

    if name == "/help":
        print(CHAT_HELP.replace("; ", "\n"))
    elif name == "/clear":
        del messages[1 if has_system else 0 :]
        print_note("(the chat starts again)")
    elif name in ("/undo", "/retry"):
        places = [i for i, message in enumerate(messages) if message["role"] == "user"]
        if not places:
            raise UserError(f"the chat has no message for {name}; write a message first")
        question = messages[places[-1]]["content"]
        del messages[places[-1] :]
        if name == "/retry":
            request = conversation.request
            conversation.request = replace(request, seed=request.seed + 1)
            if request.rules.temperature == 0:
                print_note("(the answer is the same, because --temperature is 0)")
            return question
        print_note(f"(removed the last turn: {question:.40})")
    elif name == "/system":
        messages[: 1 if has_system else 0] = system_messages(argument)
        print_note("(set the system message)")
    elif name == "/save":
        if not any(message["role"] == "assistant" for message in messages):
            raise UserError("the chat has no answer to save; write a message first")
        chat = json.dumps({"messages": messages}, ensure_ascii=False)
        try:
            with Path(expand_home(argument)).open("a", encoding="utf-8") as file:
                file.write(f"{chat}\n")
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            raise UserError(f"cannot write {argument}: {error}") from None
        print_lines(f"saved {len(messages)} messages to {argument}")
    else:
        names = [command.partition(" ")[0] for command in CHAT_COMMANDS]
        fix = did_you_mean(name, names, otherwise=f"use one of: {CHAT_HELP}")
        raise UserError(f"unknown command {name:.80}; {fix}")

    return ""
