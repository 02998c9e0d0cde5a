"""Load a model, and print samples from it."""

import argparse
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gptmini.commands.mistakes import print_error
from gptmini.commands.sample_options import rules_of
from gptmini.commands.sample_output import prepare_stdin, show_jsonl, show_text
from gptmini.console.printing import print_note, print_resolved_run
from gptmini.generation import Rules, generate_stream, in_order
from gptmini.loading import load_for_sampling
from gptmini.system.errors import UserError
from gptmini.system.hardware import check_compiler, choose_device
from gptmini.system.process import INTERRUPTED, MISUSE, restore_gc_and_sigint
from gptmini.system.signals import CtrlC
from gptmini.tokenizer import Tokenizer, chat_encoder_of


def sample_from(run: Path, prompts: list[str], options: argparse.Namespace) -> None:
    """Load the model of a run, and print each sample to stdout while it is generated."""
    rules = rules_of(options)
    Rules(**rules)  # refuses values out of range before the model is loaded
    device = choose_device(options.device)
    if options.compile:
        check_compiler(device)
    restore_gc_and_sigint()

    model, tokenizer = load_for_sampling(
        run, device=device, dtype=options.dtype, compile=options.compile
    )
    print_resolved_run(options.run, run)
    print_chat_hint(prompts, tokenizer)

    def write_samples(prompts: list[str], seed: int) -> bool:
        """Print samples, and return whether Ctrl-C has stopped them."""
        stream = generate_stream(
            model,
            tokenizer,
            prompts,
            num_samples=options.num_samples,
            batch_size=options.batch_size,
            seed=seed,
            stop=options.stop,
            ignore_end_of_text=options.ignore_end_of_text,
            log_probabilities=options.logprobs,
            compile=options.compile,
            **rules,
        )

        with CtrlC() as ctrl_c:
            pieces = in_order(ctrl_c.until_pressed(stream))
            if options.format == "jsonl":
                show_jsonl(pieces, prompts, options.num_samples, logprobs=options.logprobs)
            else:
                show_text(pieces, prompts, options.num_samples)
        return bool(ctrl_c.number)

    if options.interactive:
        sys.exit(0 if converse(write_samples, options.seed) else MISUSE)
    if write_samples(prompts, options.seed):
        # Another Ctrl-C while Python exits would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(INTERRUPTED)


def print_chat_hint(prompts: list[str], tokenizer: Tokenizer) -> None:
    """Name gptmini chat on stderr if a prompt has special tokens of the model's chat template."""
    if tokenizer.chat_template is None:
        return
    token = None
    with suppress(UserError):  # the model can continue text, even if its chat template is invalid
        token = chat_encoder_of(tokenizer).special_token_in("\n".join(prompts))
    if token is not None:
        print_note(
            f"note: {token} in a prompt is ordinary text; gptmini chat uses the model's chat template"
        )


def converse(write_samples: Callable[[list[str], int], bool], seed: int) -> bool:
    """Continue each line of stdin. The seed increases by 1 per line. Ctrl-C ends a sample, Ctrl-D the conversation.

    Args:
        write_samples: prints samples of prompts, given a seed. Returns whether Ctrl-C has stopped them.
        seed: seed for the first line.

    Returns False if a line from a pipe or a file could not be continued. Returns True otherwise: at a terminal, the
    user has already seen the error.
    """
    is_terminal = prepare_stdin()
    is_complete = True
    while True:
        try:
            line = input("> ") if is_terminal else next(sys.stdin).removesuffix("\n")
        except (EOFError, StopIteration):
            # End the line of the last "> ", so that the shell's prompt starts on a new line.
            if is_terminal:
                print()
            return is_complete or is_terminal

        try:
            if write_samples([line], seed):
                print()
        except UserError as error:
            # A character of this line may be unknown to the tokenizer. The next line may still work.
            print_error(str(error))
            is_complete = False
        seed += 1
