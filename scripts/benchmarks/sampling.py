"""Tokens a second when sampling, beside Hugging Face's generate and nanoGPT's, in turns on the same machine.

Weights are random, of the sizes named; all draw with temperature 0.8 from the 50 most probable tokens. Printed too are
the share of the speed that reading the weights once a step allows, and the seconds from a command to its first token.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from gptmini.checkpoint.file import (
    header,
    write_checkpoint,
)
from gptmini.commands.errors import Parser
from gptmini.generation import Decoder, Rules, store_by_column
from gptmini.hardware import DTYPES, choose_device, choose_dtype, clock
from gptmini.interop.hugging_face import to_hugging_face
from gptmini.model import GPT, GPTConfig, new_gpt
from gptmini.tokenizer import CharTokenizer
from gptmini.user_error import UserError

# What GPT-2 and nanoGPT are made of, so that the same weights fit all three.
CLASSIC = {
    "norm": "layernorm",
    "position": "learned",
    "mlp": "gelu",
    "bias": True,
    "tie_embeddings": True,
}
SIZES = {
    "char": {
        "vocab_size": 65,
        "context_length": 512,
        "d_model": 128,
        "n_layers": 4,
        "n_heads": 4,
    },
    "gpt2": {
        "vocab_size": 50257,
        "context_length": 1024,
        "d_model": 768,
        "n_layers": 12,
        "n_heads": 12,
    },
}
PROMPT_LENGTH = 8  # tokens
RULES = {"temperature": 0.8, "top_k": 50}
SUMS = 2  # between two looks at the clock, so that a GPU's start of a sum does not count
READ = 2**27  # numbers in the tensor whose sum gives the bandwidth: 512 MB, which no cache holds


def main() -> None:
    """Measure every size at every batch size, gptmini and each peer in turns, and print a line for each."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)

    device = choose_device(arguments.device)
    dtype = choose_dtype(arguments.dtype, device) or torch.float32
    named = str(dtype).removeprefix("torch.")
    print(f"{arguments.new_tokens} tokens after {PROMPT_LENGTH}, {device}, {named}")

    rows = []
    for size in arguments.sizes:
        model = new_gpt(GPTConfig(**SIZES[size], **CLASSIC, init="gpt2"), seed=0).eval()
        store_by_column(model.to(device=device, dtype=dtype))
        for batch_size in arguments.batch_sizes:
            rows.append(measure(model, size, batch_size, device, arguments))
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(rows, indent=1))

    if device == "cpu":
        seconds = statistics.median(first_token() for _ in range(arguments.turns))
        print(f"first token {seconds:.2f} s after the command")


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = Parser(prog="benchmark.py sampling", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=list(SIZES),
        choices=SIZES,
        help="sizes of the model (default: all)",
    )
    parser.add_argument(
        "--batch-sizes",
        nargs="+",
        type=int,
        default=[1, 8],
        help="sequences that are drawn at once (default: 1 8)",
    )
    parser.add_argument(
        "--new-tokens",
        type=int,
        default=256,
        help="tokens that are drawn for each sequence (default: %(default)s)",
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=3,
        help="runs of gptmini and of each peer that count (default: %(default)s)",
    )
    parser.add_argument(
        "--nanogpt",
        type=Path,
        help="a checkout of nanoGPT to measure too",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, cuda or mps (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", *DTYPES),
        help="the type of the weights (default: %(default)s)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile gptmini's step",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="CPU threads (default: %(default)s)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        help="a file to write the medians to, a row for each size and batch size",
    )

    arguments = parser.parse_args()

    counts = (
        *arguments.batch_sizes,
        arguments.new_tokens,
        arguments.turns,
        arguments.threads,
    )
    if min(counts) < 1:
        parser.error("--batch-sizes, --new-tokens, --turns and --threads must be at least 1")
    if arguments.nanogpt is not None and not (arguments.nanogpt / "model.py").is_file():
        parser.error(
            f"--nanogpt must be a checkout of nanoGPT with its model.py, got {arguments.nanogpt}"
        )
    table = arguments.json
    if table is not None and (table.is_dir() or not table.parent.is_dir()):
        parser.error(f"--json must be a file in a folder that is there, got {table}")
    return arguments


def measure(
    model: GPT,
    size: str,
    batch_size: int,
    device: str,
    arguments: argparse.Namespace,
) -> dict:
    """Measure one size at one batch size, and print a line.

    Args:
        model: a model of this size, on the device.
        size: the key of the size in SIZES.
        batch_size: sequences that are drawn at once.
        device: cpu, cuda or mps.
        arguments: the command line.

    Returns:
        The medians: tokens a second of gptmini and of each peer, and gptmini's share of the bandwidth.
    """
    n_tokens = arguments.new_tokens
    runs = {"ours": ours(model, batch_size, n_tokens, compile=arguments.compile)}
    peer = hugging_face(model, batch_size, n_tokens, device)
    if peer is not None:
        runs["Hugging Face"] = peer
    if arguments.nanogpt is not None:
        runs["nanoGPT"] = nanogpt(arguments.nanogpt, model, batch_size, n_tokens, device)

    bytes_of_weights = bytes_read_a_step(model)
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    shares = []
    limits = []
    for turn in range(arguments.turns + 1):
        limit = bandwidth(device) / bytes_of_weights * batch_size  # tokens per second
        for name, run in runs.items():
            start = clock(device)
            run()
            seconds = clock(device) - start
            if turn > 0:  # the first turn warms up
                speeds[name].append(batch_size * n_tokens / seconds)
        if turn > 0:
            limits.append(limit)
            shares.append(speeds["ours"][-1] / limit)

    medians = {name: statistics.median(seen) for name, seen in speeds.items()}
    share = statistics.median(shares)
    shown = ", ".join(f"{name} {speed:,.0f} tokens/s" for name, speed in medians.items())
    line = f"{size}, batch {batch_size}: {shown}{ratios_to_peers(speeds)}"
    if size == "gpt2" and batch_size == 1:
        line += f"; {share:.0%} of the {statistics.median(limits):.1f} that memory allows"
    print(line, flush=True)
    return {"size": size, "batch_size": batch_size, "share_of_bandwidth": share, **medians}


def ratios_to_peers(speeds: dict[str, list[float]]) -> str:
    """Return the end of a line: how many times as fast as each peer gptmini was, turn by turn."""
    line = ""
    for name, seen in speeds.items():
        if name == "ours":
            continue
        ratios = [mine / theirs for mine, theirs in zip(speeds["ours"], seen, strict=True)]
        middle = statistics.median(ratios)
        line += f"; {middle:.2f} times {name} ({min(ratios):.2f} to {max(ratios):.2f})"
    return line


def bytes_read_a_step(model: GPT) -> int:
    """Return the bytes of the weights that every step reads: those of the blocks and of the unembedding."""
    n_bytes = 0
    for weight in (*model.blocks.parameters(), model.unembedding_weight):
        n_bytes += weight.numel() * weight.element_size()
    return n_bytes


def bandwidth(device: str) -> float:
    """Return the bytes a second at which a large tensor is read and summed, in the fastest of ten passes."""
    numbers = torch.ones(READ, device=device)
    seconds = []
    for _ in range(10):
        start = clock(device)
        for _ in range(SUMS):
            numbers.sum()
        seconds.append((clock(device) - start) / SUMS)
    return numbers.numel() * numbers.element_size() / min(seconds)


def ours(
    model: GPT,
    batch_size: int,
    n_tokens: int,
    *,
    compile: bool,
) -> Callable[[], None]:
    """Return a function that draws n_tokens for each sequence with gptmini's cache."""
    prompts = [[1 + i for i in range(PROMPT_LENGTH)]] * batch_size

    def run() -> None:
        decoder = Decoder(
            model,
            prompts,
            Rules(max_new_tokens=n_tokens, **RULES),
            streams=range(batch_size),
            batch_size=batch_size,
            compile=compile,
        )
        for _ in range(n_tokens):
            decoder.draw()

    return run


def hugging_face(
    model: GPT,
    batch_size: int,
    n_tokens: int,
    device: str,
) -> Callable[[], None] | None:
    """Return a function that draws with transformers' GPT2LMHeadModel and the weights of the model.

    None if transformers is not installed.
    """
    try:
        import transformers
    except ImportError:
        return None

    transformers.logging.set_verbosity_error()
    config, state = to_hugging_face(model)
    kind = config.pop("model_type")
    config = transformers.GPT2Config(**config)
    peer = transformers.GPT2LMHeadModel(config).eval()
    peer.load_state_dict(state)
    peer.to(device=device, dtype=model.embedding.weight.dtype)

    prompt = prompt_of(batch_size, device)
    options = {"max_new_tokens": n_tokens, "do_sample": True, "pad_token_id": 0, **RULES}
    if device == "cuda":
        options["cache_implementation"] = "static"  # which transformers compiles

    def run() -> None:
        drawn = peer.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        n_drawn = drawn.size(1) - PROMPT_LENGTH
        if n_drawn != n_tokens:
            raise ValueError(f"{kind} drew {n_drawn} tokens of {n_tokens}")

    return run


def nanogpt(
    folder: Path,
    model: GPT,
    batch_size: int,
    n_tokens: int,
    device: str,
) -> Callable[[], None]:
    """Return a function that draws with nanoGPT's GPT.generate, from a model of the same sizes.

    Raises:
        UserError: the folder has no model.py of nanoGPT's.
    """
    sys.path.insert(0, str(folder))
    try:
        from model import GPT as Theirs
        from model import GPTConfig as TheirConfig
    except ImportError:
        raise UserError(f"{folder} must be a checkout of nanoGPT, with its model.py") from None

    config = model.config
    theirs = TheirConfig(
        block_size=config.context_length,
        vocab_size=config.vocab_size,
        n_layer=config.n_layers,
        n_head=config.n_heads,
        n_embd=config.d_model,
        dropout=0.0,
        bias=True,
    )
    peer = Theirs(theirs).eval().to(device=device, dtype=model.embedding.weight.dtype)
    prompt = prompt_of(batch_size, device)
    return lambda: peer.generate(prompt, n_tokens, **RULES)


def prompt_of(batch_size: int, device: str) -> torch.Tensor:
    """Return the prompt of the peers, the ids from 1 on for every sequence, (B, PROMPT_LENGTH)."""
    ids = torch.arange(1, 1 + PROMPT_LENGTH, device=device)
    return ids.expand(batch_size, -1)  # (B, PROMPT_LENGTH)


def first_token() -> float:
    """Return the seconds from starting sample.py on a character model to the first character after the prompt."""
    tokenizer = CharTokenizer("".join(map(chr, range(33, 98))), end_of_text=False)
    model = new_gpt(GPTConfig(**SIZES["char"], **CLASSIC, init="gpt2"), seed=0)
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    checkpoint = {"gptmini": header(model.config, tokenizer.to_dict()), "state_dict": state}
    script = Path(__file__).resolve().parent.parent / "sample.py"
    prompt = "ABC"

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "char.ckpt"
        write_checkpoint(checkpoint, path)
        command = [sys.executable, str(script), str(path)]
        command += ["--prompt", prompt, "--max-new-tokens", "20"]

        start = clock("cpu")
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            n_characters = len(prompt) + 1
            if len(process.stdout.read(n_characters)) < n_characters:
                raise ValueError(f"{' '.join(command)} printed nothing")
            return clock("cpu") - start


if __name__ == "__main__":
    main()
