"""Continue prompts with a trained model: gptmini sample RUN [options]."""

import argparse
import sys

from gptmini.commands.mistakes import one_line_errors
from gptmini.commands.options import parse_options
from gptmini.commands.prompts import prompt_from, prompts_from
from gptmini.commands.sample_options import DEVICE, RUN, SAMPLING
from gptmini.configuration.messages import advising_on_memory
from gptmini.runs import named_run
from gptmini.settings import SAMPLE_BATCH_SIZE, SAMPLE_SEED, SAMPLE_TOKENS
from gptmini.system.errors import UserError

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
--compile  compile the decoding step; takes a minute and speeds up sampling on a GPU
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    options = parse_options("sample", "Continue prompts with a trained model.", OPTIONS, arguments)
    if options.logprobs and options.format != "jsonl":
        raise UserError("--logprobs requires --format jsonl")
    return options


@one_line_errors()
@advising_on_memory("lower --batch-size, or use a machine with more memory")
def main(arguments: list[str]) -> None:
    """Load the model, and print each sample to stdout while it is generated."""
    options = parse(arguments)
    if not sys.stdout.isatty():
        # A model may write characters that the system's encoding lacks, so files and pipes get UTF-8.
        # Python's stdout has reconfigure, but its declared type, TextIO, does not.
        sys.stdout.reconfigure(encoding="utf-8")  # pyrefly: ignore[missing-attribute]

    # Look for the run before the import of torch, which takes seconds.
    run = named_run(options.run, saved=True)
    prompts = read_prompts(options)

    from gptmini.commands.sample_model import sample_from

    sample_from(run, prompts, options)


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
