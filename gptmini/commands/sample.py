"""Continue prompts with a trained model: gptmini sample RUN [options]."""

import argparse
import json
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gptmini.checks import UserError
from gptmini.commands.errors import INTERRUPTED, Parser, one_line_errors

IMPATIENT = 1.0  # seconds after which a second Ctrl-C is meant as one
DTYPES = ("fp32", "bf16", "fp64", "int8")
ESCAPES = re.compile(r"\\(?:[nrt\\]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5}|U0010[0-9a-fA-F]{4})")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; argparse refuses what does not fit."""
    parser = Parser(prog="gptmini sample", description="Continue prompts with a trained model.")
    parser.add_argument("run", help="run folder (its best checkpoint) or checkpoint file, as in runs/latest")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", default="", help="text to continue; - reads it from stdin (default: none)")
    source.add_argument("--prompt-file", type=Path, help="file with the text to continue")
    source.add_argument(
        "--prompts", type=Path, help="file with a prompt a line, or .jsonl with a prompt in each object"
    )
    source.add_argument("--interactive", action="store_true", help="continue each line that you type; Ctrl-D ends")
    parser.add_argument("--num-samples", type=int, default=1, help="samples of each prompt (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="most samples at a time (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=200, help="length of a sample (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--top-k", type=int, help="draw from so many most probable tokens (default: all)")
    parser.add_argument("--top-p", type=float, help="draw from the smallest set this probable (default: all)")
    parser.add_argument("--min-p", type=float, help="draw from what is so many times as probable as the first")
    parser.add_argument(
        "--repetition-penalty", type=float, default=1.0, help="above 1: say again less (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="same seed, same samples (default: %(default)s)")
    parser.add_argument("--stop", action="append", default=[], help=r"end a sample before this text, as in '\n\n'")
    parser.add_argument("--ignore-end-of-text", action="store_true", help="go on where a document ends")
    parser.add_argument("--format", default="text", choices=("text", "jsonl"), help="(default: %(default)s)")
    parser.add_argument("--logprobs", action="store_true", help="token ids and log-probabilities, in jsonl")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: %(default)s)")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", *DTYPES),
        help="of the weights; auto: bf16 on a GPU that computes in it; int8: on a CPU, faster, and a little worse",
    )
    parser.add_argument("--compile", action="store_true", help="compile the step: a minute that pays on a GPU")
    return parser.parse_args(arguments)


def read_prompts(arguments: argparse.Namespace) -> list[str]:
    """The prompts of --prompts, or the one of --prompt-file, of stdin without its last line break, or of --prompt."""
    from gptmini.data.corpus import decode_text

    def read(data: bytes, name: str) -> str:
        return decode_text(data, name).removeprefix("\ufeff")  # some editors begin a file so

    if path := arguments.prompts:
        lines = read(path.read_bytes(), str(path)).replace("\r\n", "\n").split("\n")
        if path.suffix == ".jsonl":
            prompts = [_prompt_of(line, f"{path}, line {i}") for i, line in enumerate(lines, start=1) if line.strip()]
        else:
            prompts = [line for line in lines if line.strip()]
        if not prompts:
            raise UserError(f"{path} must hold at least one prompt, got none")
        return prompts
    if path := arguments.prompt_file:
        return [read(path.read_bytes(), str(path))]
    if arguments.prompt == "-":
        return [read(sys.stdin.buffer.read(), "stdin").removesuffix("\n").removesuffix("\r")]
    return [arguments.prompt]


def _prompt_of(line: str, place: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place} must be JSON: {error}") from None
    if not isinstance(record, dict) or type(record.get("prompt")) is not str:
        raise UserError(f'{place} must be an object with a text, as in {{"prompt": "Once"}}')
    return record["prompt"]


class Interruption:
    """Ctrl-C, noted while it is heeded, so that what was generated is written; one a second later stops at once."""

    def __init__(self) -> None:
        self.came: float | None = None  # when

    def heed(self, pieces: Iterator) -> Iterator:
        """The pieces, up to the first Ctrl-C."""
        self.came = None
        before = signal.signal(signal.SIGINT, self._note)
        try:
            for piece in pieces:
                yield piece
                if self.came is not None:
                    return
        finally:
            signal.signal(signal.SIGINT, before)

    def _note(self, signum: int, frame: object) -> None:
        if self.came is not None and time.monotonic() - self.came > IMPATIENT:
            raise KeyboardInterrupt
        self.came = self.came or time.monotonic()


def in_order(pieces: Iterable) -> Iterator:
    """One sample after another: pieces of the first at once, those of others when the ones before have ended."""
    current, held = 0, {}
    for piece in pieces:
        held.setdefault(piece.sample, []).append(piece)
        while ready := held.pop(current, []):
            yield from ready
            current += ready[-1].finish is not None
            if ready[-1].finish is None:
                break
    for sample in sorted(held):  # only if it was interrupted
        yield from held[sample]


def show_text(pieces: Iterable, prompts: list[str], num_samples: int) -> None:
    """Each prompt with its continuation, as it comes; numbered if there are several."""
    shown = None
    for piece in pieces:
        if piece.sample != shown:
            prompt, sample = divmod(piece.sample, num_samples)
            title = [f"prompt {prompt + 1}"] * (len(prompts) > 1) + [f"sample {sample + 1}"] * (num_samples > 1)
            if title:
                print(f"{'' if shown is None else chr(10)}--- {', '.join(title)}")
            print(prompts[prompt], end="", flush=True)
            shown = piece.sample
        print(piece.text, end="\n" if piece.finish else "", flush=True)


def show_jsonl(pieces: Iterable, prompts: list[str], num_samples: int, *, logprobs: bool) -> None:
    """A line for each sample when it has ended; finish is null if it was interrupted."""

    def write() -> None:
        prompt, sample = divmod(ready[0].sample, num_samples)
        record = {"prompt": prompts[prompt], "sample": sample, "text": "".join(piece.text for piece in ready)}
        record |= {"finish": ready[-1].finish, "n_tokens": len(ready)}
        if logprobs:
            record |= {"tokens": [p.token for p in ready], "logprobs": [p.log_probability for p in ready]}
        print(json.dumps(record, ensure_ascii=False), flush=True)

    ready: list = []
    for piece in pieces:
        if ready and piece.sample != ready[0].sample:
            write()
            ready.clear()
        ready.append(piece)
        if piece.finish:
            write()
            ready.clear()
    if ready:
        write()


@one_line_errors()
def main(arguments: list[str] | None = None) -> None:
    """Check, load, sample, and write each sample to stdout as it is drawn."""
    arguments = parse(arguments)
    for name in ("num_samples", "batch_size"):
        if (value := getattr(arguments, name)) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if arguments.logprobs and arguments.format != "jsonl":
        raise UserError("--logprobs needs --format jsonl")
    if not all(arguments.stop):
        raise UserError("--stop must not be empty")
    if sys.stdin is None and (arguments.interactive or arguments.prompt == "-"):
        raise UserError("there is no stdin to read from")
    if sys.stdout is not None and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the system's own: it may lack what a model writes
    prompts = [] if arguments.interactive else read_prompts(arguments)

    import gptmini
    from gptmini.generation import Rules, generate_stream
    from gptmini.hardware import check_compiler, choose_device, choose_dtype

    int8 = arguments.dtype == "int8"
    device = choose_device("cpu" if int8 and arguments.device == "auto" else arguments.device)
    if int8 and (arguments.compile or device != "cpu"):
        raise UserError(
            f"--dtype int8 needs a CPU and no --compile, got {device}{' with --compile' * arguments.compile}"
        )
    if arguments.compile:
        check_compiler(device)
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    options = {name: getattr(arguments, name) for name in names}
    Rules(**options)
    model, tokenizer = gptmini.load(arguments.run)
    model.to(device=device, dtype=choose_dtype(arguments.dtype, device))
    names = ("num_samples", "batch_size", "ignore_end_of_text", "compile")
    options |= {name: getattr(arguments, name) for name in names} | {"int8": int8}
    options["stop"] = [ESCAPES.sub(lambda m: m[0].encode().decode("unicode_escape"), text) for text in arguments.stop]
    interruption = Interruption()

    def show(prompts: list[str], seed: int) -> None:
        stream = generate_stream(model, tokenizer, prompts, seed=seed, log_probabilities=arguments.logprobs, **options)
        pieces = in_order(interruption.heed(stream))
        if arguments.format == "jsonl":
            show_jsonl(pieces, prompts, arguments.num_samples, logprobs=arguments.logprobs)
        else:
            show_text(pieces, prompts, arguments.num_samples)

    if arguments.interactive:
        converse(show, arguments.seed, interruption)
        return
    show(prompts, arguments.seed)
    if interruption.came is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # while Python ends
        sys.exit(INTERRUPTED)


def converse(show, seed: int, interruption: Interruption) -> None:
    """Continue each line that is typed, with the next seed each time; Ctrl-C ends a sample, Ctrl-D all."""
    import importlib.util

    if importlib.util.find_spec("readline"):
        import readline  # noqa: F401  arrows and history while a line is typed
    typed = sys.stdin.isatty()
    while True:
        try:
            line = input("> " if typed else "")
        except EOFError:
            print(end="\n" if typed else "")
            return
        try:
            show([line], seed)
        except ValueError as error:  # a character that the tokenizer does not know: the next line may do
            print(f"error: {error}", file=sys.stderr)
        if interruption.came is not None:
            print()
        seed += 1
