"""Continue prompts with a trained model: gptmini sample RUN [options]."""

import argparse
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path

from gptmini import data, generation
from gptmini.commands.mistakes import one_line_errors
from gptmini.commands.options import parse_options
from gptmini.commands.prompts import prompt_from, prompts_from
from gptmini.commands.sample_options import DEVICE, RUN, SAMPLING, request_of
from gptmini.commands.sample_output import answer_lines, show_jsonl, show_text
from gptmini.configuration.messages import advising_on_memory
from gptmini.console.printing import print_note, print_resolved_run
from gptmini.runs import named_run
from gptmini.settings import SAMPLE_BATCH_SIZE, SAMPLE_SEED, SAMPLE_TOKENS
from gptmini.system.errors import UserError
from gptmini.system.process import INTERRUPTED, restore_gc_and_sigint
from gptmini.system.signals import CtrlC

OPTIONS = rf"""
{RUN}
| --prompt TEXT...  text to continue, such as 'one\ntwo', or - to read it from stdin; may be repeated (default: empty)
| --prompt-file FILE  file that contains one prompt
| --prompts FILE  file with one prompt per line, or a .jsonl file with the field prompt in each object
| --interactive  continue each line that you type; Ctrl-D ends the program
--num-samples COUNT=1  samples per prompt
--batch-size COUNT={SAMPLE_BATCH_SIZE}  maximum number of samples at a time
--max-new-tokens COUNT={SAMPLE_TOKENS}  maximum number of generated tokens
--seed INTEGER={SAMPLE_SEED}  random seed; the same seed gives the same samples
{SAMPLING}
--format text|jsonl=text  output format
--logprobs  with --format jsonl: print token ids and log-probabilities too
{DEVICE}
--copies  mark what stands word for word in the training text, in [[ ]], and name the place of the longest part
--compile  compile the decoding step; takes a minute and speeds up sampling on a GPU
"""


@one_line_errors()
@advising_on_memory("lower --batch-size, or use a machine with more memory")
def main(arguments: list[str]) -> None:
    """Load the model, and print each sample to stdout while it is generated."""
    options = parse_options("sample", "Continue prompts with a trained model.", OPTIONS, arguments)
    if options.logprobs and options.format != "jsonl":
        raise UserError("--logprobs requires --format jsonl")
    if options.copies and options.format != "text":
        raise UserError("--copies requires --format text")
    if not sys.stdout.isatty():
        # A model may write characters that the system's encoding lacks, so files and pipes get UTF-8.
        # Python's stdout has reconfigure, but its declared type, TextIO, does not.
        sys.stdout.reconfigure(encoding="utf-8")  # pyrefly: ignore[missing-attribute]

    # Look for the run before the import of torch, which takes seconds.
    run = named_run(options.run, saved=True)
    prompts = read_prompts(options)
    request = request_of(options)

    from gptmini.loading import load_for_sampling
    from gptmini.tokenizer import chat_encoder_of

    restore_gc_and_sigint()
    model, tokenizer = load_for_sampling(
        run, device=options.device, dtype=options.dtype, compile=options.compile
    )
    print_resolved_run(options.run, run)
    if tokenizer.chat_template is not None:
        # The model can continue text, even if its chat template is invalid.
        with suppress(UserError):
            token = chat_encoder_of(tokenizer).special_token_in("\n".join(prompts))
            if token is not None:
                print_note(
                    f"note: {token} in a prompt is ordinary text; gptmini chat uses the model's chat template"
                )

    store = None if options.format == "jsonl" else training_text(run, is_required=options.copies)

    def write_samples(prompts: list[str], seed: int, ctrl_c: CtrlC) -> None:
        """Print samples until Ctrl-C."""
        stream = generation.generate_stream(
            model,
            tokenizer,
            prompts,
            num_samples=options.num_samples,
            batch_size=options.batch_size,
            seed=seed,
            stop=request.stop,
            ignore_end_of_text=request.ignore_end_of_text,
            log_probabilities=options.logprobs,
            compile=options.compile,
            **asdict(request.rules),
        )

        pieces = generation.in_order(ctrl_c.until_pressed(stream))
        if options.format == "jsonl":
            show_jsonl(pieces, prompts, options.num_samples, logprobs=options.logprobs)
        else:
            show_text(pieces, prompts, options.num_samples, store, mark=options.copies)

    if options.interactive:
        seeds = count(options.seed)

        def continue_line(line: str, ctrl_c: CtrlC) -> None:
            write_samples([line], next(seeds), ctrl_c)
            if ctrl_c.number:
                print()

        sys.exit(answer_lines(continue_line, "(Ctrl-C stops a sample, Ctrl-D ends)"))

    with CtrlC() as ctrl_c:
        write_samples(prompts, options.seed, ctrl_c)
    if ctrl_c.number:
        # Another Ctrl-C while Python exits would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(INTERRUPTED)


def training_text(run: Path, *, is_required: bool) -> "data.TokenStore | None":
    """Open the prepared training text of a model, to find copies in it.

    If it is not required, return None for a long text, and also if the text is missing or damaged.
    """
    from gptmini.loading import source_of

    folder = source_of(run).data_folder
    if folder is not None:
        folder = data.find_prepared(folder, run)
    if folder is None or not (folder / "meta.json").is_file():
        if is_required:
            raise UserError(
                f"--copies requires the training text, but {folder or run} does not have it; leave out --copies"
            )
        return None

    try:
        store = data.TokenStore(folder)
    except UserError as error:  # the model can continue text without its training text
        if is_required:
            raise
        print_note(f"note: {error}")
        return None
    return store if is_required or store.n_tokens("train") <= data.SEARCHED else None


def read_prompts(options: argparse.Namespace) -> list[str]:
    """Return the prompts that the options give. Return an empty list if lines are read interactively."""
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
