"""Continue prompts with a trained model: gptmini sample RUN [options]."""

import argparse
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gptmini.commands.arguments import at_least_one, print_resolved_run
from gptmini.commands.mistakes import Parser, one_line_errors, path_argument, print_error
from gptmini.commands.sample_options import add_device, add_sampling, rules_of
from gptmini.commands.sample_output import (
    Interruption,
    prepare_stdin,
    show_jsonl,
    show_text,
)
from gptmini.configuration.messages import advising_on_memory
from gptmini.data.escapes import unescaped
from gptmini.job.printing import print_note
from gptmini.process import INTERRUPTED, MISUSE, restore_gc_and_sigint
from gptmini.runs import named_run
from gptmini.settings import SAMPLE_BATCH_SIZE, SAMPLE_TOKENS
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.tokenizer import Tokenizer


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="gptmini sample", description="Continue prompts with a trained model.")
    parser.add_argument(
        "run",
        type=path_argument,
        help="run folder such as runs/latest (uses its best checkpoint), checkpoint file or exported folder; "
        "runs/NAME means its latest run with a checkpoint",
    )

    # Prompts, from at most one source.
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompt",
        type=unescaped,
        action="append",
        help=r"text to continue, such as 'one\ntwo', or - to read it from stdin; may be repeated (default: empty)",
    )
    source.add_argument(
        "--prompt-file",
        type=path_argument,
        help="file that contains one prompt",
    )
    source.add_argument(
        "--prompts",
        type=path_argument,
        help="file with one prompt per line, or a .jsonl file with the field prompt in each object",
    )
    source.add_argument(
        "--interactive",
        action="store_true",
        help="continue each line that you type; Ctrl-D ends the program",
    )

    # Amount of text.
    parser.add_argument(
        "--num-samples",
        type=at_least_one,
        default=1,
        help="samples per prompt (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size",
        type=at_least_one,
        default=SAMPLE_BATCH_SIZE,
        help="maximum number of samples at a time (default: %(default)s)",
    )
    add_sampling(parser, max_new_tokens=SAMPLE_TOKENS)

    # Output.
    parser.add_argument(
        "--format",
        default="text",
        choices=("text", "jsonl"),
        help="output format (default: %(default)s)",
    )
    parser.add_argument(
        "--logprobs",
        action="store_true",
        help="with --format jsonl: print token ids and log-probabilities too",
    )

    add_device(parser)
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the decoding step; takes a minute and speeds up sampling on a GPU",
    )

    options = parser.parse_args(arguments)
    if options.logprobs and options.format != "jsonl":
        parser.error("--logprobs requires --format jsonl")
    return options


@one_line_errors()
@advising_on_memory("lower --batch-size, or use a machine with more memory")
def main(arguments: list[str] | None = None) -> None:
    """Load the model, and print each sample to stdout while it is generated."""
    options = parse(arguments)
    if not sys.stdout.isatty():
        # A model may write characters that the system's encoding lacks, so files and pipes get UTF-8.
        # Python's stdout has reconfigure, but its declared type, TextIO, does not.
        sys.stdout.reconfigure(encoding="utf-8")  # pyrefly: ignore[missing-attribute]

    # Look for the run before the imports of torch, which take seconds.
    run = named_run(options.run, saved=True)

    from gptmini.generation import Rules, generate_stream, in_order
    from gptmini.hardware import check_compiler, choose_device
    from gptmini.loading import load_for_sampling

    prompts = read_prompts(options)
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
    interruption = Interruption()

    def write_samples(prompts: list[str], seed: int) -> None:
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

        pieces = in_order(interruption.until_interrupted(stream))
        if options.format == "jsonl":
            show_jsonl(pieces, prompts, options.num_samples, logprobs=options.logprobs)
        else:
            show_text(pieces, prompts, options.num_samples)

    if options.interactive:
        is_complete = converse(write_samples, options.seed, interruption)
        sys.exit(0 if is_complete else MISUSE)

    write_samples(prompts, options.seed)
    if interruption.came is not None:
        # Another Ctrl-C while Python exits would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(INTERRUPTED)


def print_chat_hint(prompts: list[str], tokenizer: "Tokenizer") -> None:
    """Name gptmini chat on stderr if a prompt has special tokens of the model's chat template."""
    if tokenizer.chat_template is None:
        return
    token = None
    with suppress(UserError):  # the model can continue text, even if its chat template is invalid
        token = tokenizer.chat_encoder.special_token_in("\n".join(prompts))
    if token is not None:
        print_note(
            f"note: {token} in a prompt is ordinary text; gptmini chat uses the model's chat template"
        )


def read_prompts(options: argparse.Namespace) -> list[str]:
    """Return the prompts that the options give. Return an empty list if lines are read interactively."""
    from gptmini.generation.prompts import prompt_from, prompts_from

    if options.interactive:
        return []
    if options.prompts is not None:
        return prompts_from(options.prompts)
    if options.prompt_file is not None:
        return [prompt_from(options.prompt_file.read_bytes(), str(options.prompt_file))]
    given = options.prompt or [""]
    return [
        prompt_from(sys.stdin.buffer.read(), "stdin") if text == "-" else text for text in given
    ]


def converse(
    write_samples: Callable[[list[str], int], None], seed: int, interruption: Interruption
) -> bool:
    """Continue each line of stdin. The seed increases by 1 per line. Ctrl-C ends a sample, Ctrl-D the conversation.

    Args:
        write_samples: prints samples of prompts, given a seed.
        seed: seed for the first line.
        interruption: records whether Ctrl-C ended the samples of a line.

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
            write_samples([line], seed)
        except UserError as error:
            # A character of this line may be unknown to the tokenizer. The next line may still work.
            print_error(str(error))
            is_complete = False
        if interruption.came is not None:
            print()
        seed += 1
