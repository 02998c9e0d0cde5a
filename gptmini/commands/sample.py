"""Continue prompts with a trained model: gptmini sample RUN [options]."""

import argparse
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from gptmini.commands.arguments import at_least_one, say_which
from gptmini.commands.mistakes import Parser, one_line_errors, path_argument, print_mistake
from gptmini.commands.sample_output import Interruption, show_jsonl, show_text
from gptmini.configuration.messages import advising_on_memory
from gptmini.data.escapes import unescaped
from gptmini.process import INTERRUPTED, MISUSE, started
from gptmini.settings import SAMPLE_BATCH_SIZE, SAMPLE_SEED, SAMPLE_TEMPERATURE, SAMPLE_TOKENS
from gptmini.user_error import UserError

DTYPES = ("fp32", "bf16", "fp64")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="gptmini sample", description="Continue prompts with a trained model.")
    parser.add_argument(
        "run",
        type=path_argument,
        help="run folder (its best checkpoint), checkpoint file or exported folder, as in runs/latest; "
        "runs/NAME for its newest run with a checkpoint",
    )

    # The prompts, from at most one source.
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompt",
        type=unescaped,
        action="append",
        help=r"text to continue, as in 'one\ntwo'; - reads it from stdin; may be given several times (default: none)",
    )
    source.add_argument(
        "--prompt-file",
        type=path_argument,
        help="file with the text to continue",
    )
    source.add_argument(
        "--prompts",
        type=path_argument,
        help="file with a prompt a line, or .jsonl with a prompt in each object",
    )
    source.add_argument(
        "--interactive",
        action="store_true",
        help="continue each line that you type; Ctrl-D ends",
    )

    # How much is generated.
    parser.add_argument(
        "--num-samples",
        type=at_least_one,
        default=1,
        help="samples of each prompt (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size",
        type=at_least_one,
        default=SAMPLE_BATCH_SIZE,
        help="most samples at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=at_least_one,
        default=SAMPLE_TOKENS,
        help="length of a sample (default: %(default)s)",
    )

    # How the next token is drawn; gptmini.generation.Rules says which numbers fit.
    parser.add_argument(
        "--temperature",
        type=float,
        default=SAMPLE_TEMPERATURE,
        help="0 is greedy (default: %(default)s)",
    )
    parser.add_argument(
        "--top-k",
        type=at_least_one,
        help="draw from so many most probable tokens (default: all)",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        help="draw from the smallest set this probable (default: all)",
    )
    parser.add_argument(
        "--min-p",
        type=float,
        help="draw from what is so many times as probable as the first",
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        help="above 1: say again less (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=SAMPLE_SEED,
        help="same seed, same samples (default: %(default)s)",
    )

    # Where a sample ends, besides its length.
    parser.add_argument(
        "--stop",
        type=unescaped,
        action="append",
        default=[],
        help=r"end a sample before this text, as in '\n\n'",
    )
    parser.add_argument(
        "--ignore-end-of-text",
        action="store_true",
        help="go on where a document ends",
    )

    # What is printed.
    parser.add_argument(
        "--format",
        default="text",
        choices=("text", "jsonl"),
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "--logprobs",
        action="store_true",
        help="token ids and log-probabilities, in jsonl",
    )

    # What computes.
    parser.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, cuda or mps (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", *DTYPES),
        help="of the weights; auto: bf16 on a GPU that computes in it",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the step: a minute that pays on a GPU",
    )

    options = parser.parse_args(arguments)
    if options.logprobs and options.format != "jsonl":
        parser.error("--logprobs needs --format jsonl")
    return options


@one_line_errors()
@advising_on_memory("lower --batch-size, or use a machine with more memory")
def main(arguments: list[str] | None = None) -> None:
    """Load the model, and print each sample to stdout as it is drawn."""
    options = parse(arguments)
    if not sys.stdout.isatty():
        # A model may write characters that the system's own encoding lacks, so files and pipes get UTF-8.
        # Python's own stdout can be set anew, which its declared type, TextIO, does not say.
        sys.stdout.reconfigure(encoding="utf-8")  # pyrefly: ignore[missing-attribute]

    from gptmini.generation import Rules, generate_stream, in_order, pack
    from gptmini.hardware import check_compiler, choose_device, choose_dtype
    from gptmini.loading import load
    from gptmini.runs import named_run

    prompts = read_prompts(options)
    rules = {
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "repetition_penalty": options.repetition_penalty,
    }
    Rules(**rules)  # refuses a value out of range, before the model is loaded
    device = choose_device(options.device)
    if options.compile:
        check_compiler(device)
    started()

    run = named_run(options.run, saved=True)
    model, tokenizer = load(run)
    model.to(device=device, dtype=choose_dtype(options.dtype, device))
    if device == "cpu" and not options.compile:
        pack(model)
    say_which(options.run, run)
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

        pieces = in_order(interruption.heed(stream))
        if options.format == "jsonl":
            show_jsonl(pieces, prompts, options.num_samples, logprobs=options.logprobs)
        else:
            show_text(pieces, prompts, options.num_samples)

    if options.interactive:
        is_complete = converse(write_samples, options.seed, interruption)
        sys.exit(0 if is_complete else MISUSE)

    write_samples(prompts, options.seed)
    if interruption.came is not None:
        # One more Ctrl-C while Python ends would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(INTERRUPTED)


def read_prompts(options: argparse.Namespace) -> list[str]:
    """The prompts that the options name; none where lines are typed."""
    from gptmini.generation.prompts import prompt_from, prompts_from

    if options.interactive:
        return []
    if options.prompts is not None:
        return prompts_from(options.prompts)
    if options.prompt_file is not None:
        return [prompt_from(options.prompt_file.read_bytes(), str(options.prompt_file))]
    typed = options.prompt or [""]
    return [
        prompt_from(sys.stdin.buffer.read(), "stdin") if text == "-" else text for text in typed
    ]


def converse(
    write_samples: Callable[[list[str], int], None], seed: int, interruption: Interruption
) -> bool:
    """Continue each line that is typed, with the next seed each time; Ctrl-C ends a sample, Ctrl-D the conversation.

    Args:
        write_samples: prints samples of prompts under a seed.
        seed: the seed for the first line.
        interruption: says after each line whether Ctrl-C ended its samples.

    Returns False if a line from a pipe or a file could not be continued, True otherwise. A person who types has seen
    the mistake.
    """
    # Where Python has readline, importing it gives input() arrow keys and a history.
    with suppress(ImportError):
        import readline  # noqa: F401

    is_typed = sys.stdin.isatty()
    is_complete = True
    while True:
        try:
            line = input("> ") if is_typed else next(sys.stdin).removesuffix("\n")
        except (EOFError, StopIteration):
            # End the line of the last prompt sign, so that the shell's own prompt begins a new one.
            if is_typed:
                print()
            return is_complete or is_typed

        try:
            write_samples([line], seed)
        except UserError as error:
            # The tokenizer may not know a character of this line, and yet know those of the next.
            print_mistake(str(error))
            is_complete = False
        if interruption.came is not None:
            print()
        seed += 1
