"""Talk to a trained model in the terminal: gptmini chat RUN [options]."""

import sys

from gptmini.commands import sample
from gptmini.commands.mistakes import one_line_errors
from gptmini.commands.options import parse_options
from gptmini.commands.sample_options import CHAT_HELP, DEVICE, RUN, SAMPLING
from gptmini.configuration.messages import advising_on_memory
from gptmini.runs import named_run
from gptmini.settings import CHAT_TOKENS, SAMPLE_SEED

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

    from gptmini.commands.chat_model import chat_with

    chat_with(run, options)
